"""Links between the documents, and from them into the code, lead somewhere."""
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
# A source, and behind it the name of something in it.
NAMED = re.compile(r"\]\(([^)\s]+\.(?:rs|py))\)\s+`([A-Za-z_:]+)`")


def documents() -> list:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split()]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set:
    found = set()
    for title in re.findall(r"^#+ +(.+)$", prose(text), flags=re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found.add(re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-"))
    return found


class Links(unittest.TestCase):
    def test_links_lead_somewhere(self):
        checked = 0
        for document in documents():
            for target in LINK.findall(prose(document.read_text())):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                file = (document.parent / name) if name else document
                with self.subTest(document=str(document.relative_to(ROOT)), target=target):
                    self.assertTrue(file.exists(), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(file.read_text()))
                checked += 1
        self.assertGreater(checked, 100, "the search does not find the links")

    def test_what_is_named_behind_a_source_stands_in_it(self):
        checked = 0
        for document in documents():
            for target, name in NAMED.findall(prose(document.read_text())):
                last = name.split("::")[-1]
                with self.subTest(document=str(document.relative_to(ROOT)), source=target, name=name):
                    self.assertRegex((document.parent / target).read_text(), rf"\b{last}\b")
                checked += 1
        self.assertGreater(checked, 50, "the search does not find the names")


if __name__ == "__main__":
    unittest.main()
