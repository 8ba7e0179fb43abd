"""What the comments above blocks mean, and that a slip in one is not passed over."""
import unittest

import blocks


def one(markdown: str) -> blocks.Block:
    found = blocks.read(markdown)
    assert len(found) == 1, found
    return found[0]


class Blocks(unittest.TestCase):
    def test_a_block_without_a_comment_is_run_as_it_stands(self):
        block = one("text\n\n```sh\nholdfast status\n```\n")
        self.assertEqual(block, blocks.Block("sh", "holdfast status\n", 4))

    def test_other_languages_are_no_blocks(self):
        self.assertEqual(blocks.read("```\na\n```\n```console\n$ a\n```\n```yaml\na: b\n```\n"), [])

    def test_comments_add_up(self):
        block = one("<!-- run: prints leader -->\n<!-- run: prints a b -->\n<!-- run: exits 3 -->\n```sh\na\n```")
        self.assertEqual((block.prints, block.exit_code), (["leader", "a b"], 3))
        block = one("<!-- run: in another terminal -->\n<!-- run: until holdfast status -->\n\n```sh\na\n```")
        self.assertEqual((block.stays, block.until), (True, "holdfast status"))
        self.assertEqual(one("<!-- run: needs sbatch -->\n```sh\na\n```").needs, ["sbatch"])
        block = one("<!-- run: on 3 hosts -->\n```sh\nNODE=1   # 2 and 3\n```")
        self.assertEqual(block.hosts, 3)

    def test_a_setup_may_have_several_lines(self):
        block = one("<!-- setup:\ncp a b\ncp c d\n-->\n```sh\na\n```")
        self.assertEqual(block.setup, ["cp a b\ncp c d"])

    def test_a_block_in_a_list_loses_its_indent(self):
        self.assertEqual(one("1. do\n   ```sh\n   a \\\n     b\n   ```\n").text, "a \\\n  b\n")

    def test_a_file_is_python_or_shell(self):
        self.assertEqual(one("<!-- file: train.py -->\n```python\nx = 1\n```").file, "train.py")

    def test_slips_are_refused(self):
        for markdown, why in [
            ("<!-- run: prints -->\n```sh\na\n```", "nothing that can be done"),
            ("<!-- run: -->\n```sh\na\n```", "says nothing more"),
            ("<!-- not run: -->\n```sh\na\n```", "says nothing more"),
            ("<!-- run: sometimes -->\n```sh\na\n```", "nothing that can be done"),
            ("<!-- not run because -->\n```sh\na\n```", "nearly"),
            ("<!-- run: exits 1 -->\ntext\n```sh\na\n```", "belongs to no block"),
            ("<!-- run: on 3 hosts -->\n```sh\na\n```", "NODE=1"),
            ("```python\na\n```", "is a file"),
            ("```sh\na\n", "does not end"),
        ]:
            with self.assertRaisesRegex(blocks.BadComment, why, msg=markdown):
                blocks.read(markdown)


if __name__ == "__main__":
    unittest.main()
