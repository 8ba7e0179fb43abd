#!/usr/bin/env python3
"""Runs the shell blocks of the documents, in order, as a reader would type them.

Each document is run on a machine of its own (sandbox.py) in a fresh copy of the files that git
tracks, with the binaries and a Python that has PyTorch on the PATH. Variables and the working
directory go on from block to block. A block that ends with another exit code than 0, does not print
what it should, or takes too long is a failure; what comments can say about that is in blocks.py.

Where such a machine cannot be made this says SKIPPED and why, and exits with 0.
"""
import argparse
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import blocks
import sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Those that train come first: README.md breaks a cluster in the end, and judges what it did meanwhile.
DOCUMENTS = [
    "README.md",
    "trainer-shim/docs/launchers.md",
    "trainer-shim/python/README.md",
    "store/docs/deploy.md",
    "store/docs/operate.md",
    "store/docs/recover.md",
    "store/docs/secure.md",
    "store/docs/upgrade.md",
]
BLOCK_SECONDS_MAX = 180
UNTIL_SECONDS_MAX = 90
POLL_SECONDS = 0.2
SHOWN_LINES = 40
# A document is a machine: these many at a time.
AT_ONCE = 2
# Writes down the variables that can be set again, exported or not, and the working directory.
KEEP = """
set +eu
for name in $(compgen -v); do
  [[ ${!name@a} == *r* || $name == BASH* || $name == _ ]] || declare -p "$name"
done > STATE 2> /dev/null
printf 'cd %q\\n' "$PWD" >> STATE
exit 0
"""


class Failure(Exception):
    """A block did not do what it should."""


def say(line: str) -> None:
    print(line, flush=True)


class Session:
    """The terminal of a reader: what blocks leave behind for those after them."""

    def __init__(self, document: str, home: pathlib.Path):
        self.document, self.home = document, home
        self.folder = home / "holdfast"
        self.state = home / "state"
        self.count = 0
        self.others: list[tuple[blocks.Block, subprocess.Popen, pathlib.Path]] = []
        fresh_copy(self.folder)
        self.state.write_text(f"cd {shlex.quote(str(self.folder))}\n")

    def run(self, block: blocks.Block) -> Optional[str]:
        """Runs a block; answers why not, if it is not run."""
        if block.not_run:
            return block.not_run
        missing = [needed for needed in block.needs if not is_there(needed)]
        if missing:
            return f"SKIPPED: there is no {' and no '.join(missing)} here"
        for commands in block.setup:
            self.shell(commands, block, keeps=True, name="setup")
        if block.file:
            where = self.folder_now() / block.file
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(block.text)
            return None
        for host in range(1, block.hosts + 1):
            self.on_host(host, block)
        if block.until:
            self.wait_until(block)
        self.check_others()
        return None

    def on_host(self, host: int, block: blocks.Block) -> None:
        text = block.text.replace("NODE=1", f"NODE={host}", 1) if block.hosts > 1 else block.text
        before = sandbox.of_host(host) if block.hosts > 1 else []
        if block.stays:
            process, log = self.start(text, before, keeps=False)
            self.others.append((block, process, log))
            return
        output = self.shell(text, block, before=before, keeps=block.hosts == 1)
        self.check_prints(block, output)

    def start(self, text: str, before: list[str], keeps: bool) -> tuple[subprocess.Popen, pathlib.Path]:
        self.count += 1
        script, log = self.home / f"block-{self.count}.sh", self.home / f"block-{self.count}.log"
        lines = ["set -euo pipefail", f"source {shlex.quote(str(self.state))}", text]
        if keeps:
            lines.append(KEEP.replace("STATE", shlex.quote(str(self.state))))
        script.write_text("\n".join(lines) + "\n")
        with open(log, "wb") as output:
            process = subprocess.Popen([*before, "bash", str(script)], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True,
                                       preexec_fn=sandbox.die_with_parent)
        return process, log

    def shell(self, text: str, block: blocks.Block, keeps: bool, before: Optional[list[str]] = None,
              name: str = "block") -> str:
        process, log = self.start(text, before or [], keeps)
        try:
            code = process.wait(BLOCK_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Failure(f"{self.place(block)}: the {name} has not ended in {BLOCK_SECONDS_MAX} s:\n{shown(read(log))}")
        expected = block.exit_code if name == "block" else 0
        if code != expected:
            raise Failure(f"{self.place(block)}: the {name} ended with {code} instead of {expected}:\n{shown(read(log))}")
        return read(log)

    def wait_until(self, block: blocks.Block) -> None:
        """Until the command that the comment names succeeds."""
        deadline, last = time.monotonic() + UNTIL_SECONDS_MAX, ""
        while time.monotonic() < deadline:
            process, log = self.start(str(block.until), [], keeps=False)
            try:
                done = process.wait(BLOCK_SECONDS_MAX) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                done = False
            last = read(log)
            if done:
                return
            self.check_others()
            time.sleep(POLL_SECONDS)
        raise Failure(f"{self.place(block)}: `{block.until}` does not succeed:\n{shown(last)}\n{self.logs()}")

    def check_others(self) -> None:
        """What goes on in other terminals has not failed."""
        for block, process, log in list(self.others):
            if process.poll() is None:
                continue
            self.others.remove((block, process, log))
            output = read(log)
            if process.returncode != block.exit_code:
                raise Failure(f"{self.place(block)}: ended with {process.returncode}, in another terminal:\n{shown(output)}")
            self.check_prints(block, output)

    def check_prints(self, block: blocks.Block, output: str) -> None:
        for text in block.prints:
            if text not in output:
                raise Failure(f"{self.place(block)}: does not print {text!r}:\n{shown(output)}")

    def close(self) -> None:
        """What is to be printed in other terminals has been by now."""
        self.check_others()
        for block, _, log in self.others:
            self.check_prints(block, read(log))

    def folder_now(self) -> pathlib.Path:
        asked = subprocess.run(["bash", "-c", f"source {shlex.quote(str(self.state))}; pwd"], stdout=subprocess.PIPE,
                               text=True, check=True)
        return pathlib.Path(asked.stdout.strip())

    def place(self, block: blocks.Block) -> str:
        return f"{self.document}:{block.line}"

    def logs(self) -> str:
        return "\n".join(f"{self.place(block)}, in another terminal:\n{shown(read(log))}" for block, _, log in self.others)


def is_there(needed: str) -> bool:
    """A program, or `python MODULE`."""
    program, _, module = needed.partition(" ")
    if not shutil.which(program):
        return False
    looks = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return not module or subprocess.run([program, "-c", looks, module]).returncode == 0


def read(log: pathlib.Path) -> str:
    return log.read_text(errors="replace")


def shown(output: str) -> str:
    return "\n".join(f"  | {line}" for line in output.splitlines()[-SHOWN_LINES:]) or "  | (nothing)"


def fresh_copy(folder: pathlib.Path) -> None:
    """The files that git tracks, as a clone has them."""
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"],
                            stdout=subprocess.PIPE, check=True)
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if not name or not source.is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)


def environment(options: argparse.Namespace, home: pathlib.Path) -> None:
    """That of a reader who has logged in and has put the binaries on the PATH."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "PET_", "SLURM_", "TORCH", "MASTER_", "MAKE"))
            and name not in ("RANK", "WORLD_SIZE", "TMPDIR", "XDG_RUNTIME_DIR")}
    os.environ.clear()
    pythons = [str(python.parent) for python in options.python]
    path = ":".join([str(options.binaries.resolve()), *pythons, kept.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    os.environ.update(kept, PATH=path, HOME=str(home), OMP_NUM_THREADS="1")
    if options.release:
        os.environ["DOCS_RELEASE"] = str(options.release.resolve())


def inside(options: argparse.Namespace, document: str) -> int:
    """Runs a document; this process is the first one of its machine."""
    found = blocks.read((ROOT / document).read_text())
    home = sandbox.enter()
    environment(options, home)
    session = Session(document, home)
    left_out = 0
    try:
        for block in found:
            began = time.monotonic()
            reason = session.run(block)
            left_out += reason is not None
            what = f"not run: {reason}" if reason else f"{time.monotonic() - began:.1f} s"
            say(f"{document}:{block.line}: {what}")
        session.close()
    except Failure as failure:
        # What failed comes last: the end of a log is read first.
        say(f"{session.logs()}\nFAILED: {failure}")
        return 1
    say(f"{document}: {len(found) - left_out} blocks did what they say, {left_out} not run")
    return 0


def outside(options: argparse.Namespace) -> int:
    """Runs all documents, each in a machine of its own."""
    for document in options.documents:
        blocks.read((ROOT / document).read_text())
    why = sandbox.missing()
    if why:
        say(f"SKIPPED: docs: a machine for them cannot be made here: {why}")
        return 0
    command = [__file__, "--inside", "--binaries", str(options.binaries)]
    for python in options.python:
        command += ["--python", str(python)]
    if options.release:
        command += ["--release", str(options.release)]

    def passes(document: str) -> bool:
        return sandbox.start([*command, document]).wait() == 0

    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = [document for document, passed in zip(options.documents, pool.map(passes, options.documents)) if not passed]
    say(f"docs: FAILED: {' '.join(failed)}" if failed else "docs: PASSED")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug",
                        help="folder of the binaries (default: %(default)s)")
    parser.add_argument("--python", type=pathlib.Path, action="append",
                        help="a Python for the PATH, before others; may be given again "
                             "(default: the one with the wheel and the one with PyTorch that tests/prepare has made)")
    parser.add_argument("--release", type=pathlib.Path,
                        help="folder of the last release's binaries, from which upgrade.md begins (default: --binaries)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("documents", nargs="*", default=DOCUMENTS, help="(default: all)")
    options = parser.parse_args()
    made = [os.environ.get(name, "") for name in ("HOLDFAST_WHEEL_PYTHON", "HOLDFAST_PYTHON")]
    options.python = options.python or [pathlib.Path(python) for python in made if pathlib.Path(python).is_file()]
    return inside(options, options.documents[0]) if options.inside else outside(options)


if __name__ == "__main__":
    sys.exit(main())
