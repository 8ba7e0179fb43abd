"""The code blocks of a Markdown file, and what the comments above them say about running them.

A block is run as it stands unless a comment right above its fence says otherwise:

    <!-- not run: REASON -->                  shown, not run
    <!-- run: prints TEXT -->                 its output must hold TEXT; may be said several times
    <!-- run: exits CODE -->                  it must end with this exit code instead of 0
    <!-- run: on 3 hosts -->                  once on each host, with 2 and 3 in the place of the
                                              1 in its first line NODE=1
    <!-- run: in another terminal -->         it goes on while the next blocks are run
    <!-- run: until COMMAND -->               the next block is run once COMMAND succeeds
    <!-- run: needs PROGRAM -->               not run where there is no such program; `needs python
                                              MODULE`: where Python has no such module
    <!-- file: NAME -->                       no commands, but the content of a file
    <!-- setup: COMMANDS -->                  run before the block; what the reader has at that
                                              point and no block makes: a program, a job

Other comments mean nothing. Several may stand above one fence.
"""
import dataclasses
import re
from typing import Optional

COMMENT = re.compile(r"<!--\s*(not run|run|file|setup):\s*(.*?)\s*-->", re.DOTALL)
# What looks like one of them and is none would be passed over in silence.
NEARLY = re.compile(r"<!--\s*(not.?run|run|files?|setup)\b", re.IGNORECASE)
FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
HOSTS = re.compile(r"on (\d) hosts")
LANGUAGES = ("sh", "python")


class BadComment(Exception):
    """A comment above a block that says nothing that can be done."""


@dataclasses.dataclass
class Block:
    """One fenced block."""
    language: str
    text: str
    line: int
    not_run: Optional[str] = None
    file: Optional[str] = None
    setup: list[str] = dataclasses.field(default_factory=list)
    prints: list[str] = dataclasses.field(default_factory=list)
    exit_code: int = 0
    hosts: int = 1
    stays: bool = False
    until: Optional[str] = None
    needs: list[str] = dataclasses.field(default_factory=list)

    def obey(self, verb: str, words: str) -> None:
        """Takes in one comment."""
        if not words:
            raise BadComment(f"line {self.line}: `{verb}:` says nothing more")
        if verb == "not run":
            self.not_run = words
        elif verb == "file":
            self.file = words
        elif verb == "setup":
            self.setup.append(words)
        elif words == "in another terminal":
            self.stays = True
        elif words.startswith("prints "):
            self.prints.append(words.removeprefix("prints "))
        elif words.startswith("until "):
            self.until = words.removeprefix("until ")
        elif words.startswith("needs "):
            self.needs.append(words.removeprefix("needs "))
        elif words.startswith("exits ") and words.removeprefix("exits ").isdigit():
            self.exit_code = int(words.removeprefix("exits "))
        elif match := HOSTS.fullmatch(words):
            self.hosts = int(match[1])
        else:
            raise BadComment(f"line {self.line}: `run: {words}` is nothing that can be done; blocks.py lists what can")

    def check(self) -> None:
        """What cannot be together."""
        if self.language == "python" and not (self.file or self.not_run):
            raise BadComment(f"line {self.line}: a block of Python is a file (`file: NAME`), or is not run")
        if self.hosts > 1 and not self.text.startswith("NODE=1"):
            raise BadComment(f"line {self.line}: what is run on several hosts begins with NODE=1")


def read(markdown: str) -> list[Block]:
    """The blocks of shell and Python, in order."""
    blocks, lines, above = [], markdown.splitlines(), []
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening:
            indent, language = opening.groups()
            end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == "```"), None)
            if end is None:
                raise BadComment(f"line {number + 1}: the block does not end")
            if language in LANGUAGES:
                text = "\n".join(line.removeprefix(indent) for line in lines[number + 1:end])
                block = Block(language, text + "\n", number + 2)
                for verb, words in COMMENT.findall("\n".join(above)):
                    block.obey(verb, words)
                block.check()
                blocks.append(block)
            above, number = [], end + 1
            continue
        if lines[number].strip().startswith("<!--"):
            comment = [lines[number]]
            while "-->" not in comment[-1] and number + 1 < len(lines):
                number += 1
                comment.append(lines[number])
            text = "\n".join(comment)
            if NEARLY.match(text.strip()) and not COMMENT.match(text.strip()):
                raise BadComment(f"line {number + 1}: a comment that is nearly one of those above a block: {text}")
            above.append(text)
        elif lines[number].strip():
            if any(COMMENT.match(text.strip()) for text in above):
                raise BadComment(f"line {number + 1}: the comment above belongs to no block")
            above = []
        number += 1
    return blocks
