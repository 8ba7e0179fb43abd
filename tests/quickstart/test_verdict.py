"""The check of acknowledged writes must find what it is there to find."""
import types
import unittest

import verdict
from training import RANKS
from writer import KEY, Write

PREFIX = "/default_pg/0//"


def training():
    """Four ranks with one set and one add each, and a writer with three adds."""
    notes = {rank: [{"operation": "new_group"},
                    {"operation": "add", "result": rank + 1, "set_key": f"loss/{rank}/2", "set_value": "0.5"}]
             for rank in range(RANKS)}
    writes = [Write(0.0, 0.1, number) for number in (1, 2, 3)]
    return types.SimpleNamespace(run="r", notes=notes.__getitem__, writes=writes)


def entries():
    """What the store holds after exactly that."""
    losses = {f"{PREFIX}loss/{rank}/2": "0.5" for rank in range(RANKS)}
    return losses | {f"{PREFIX}steps": str(RANKS), f"/{KEY}": "3", "init/": "4"}


class TestCheckWrites(unittest.TestCase):
    def problems(self, found, job=None):
        return verdict.check_writes(job or training(), found, "the cluster")

    def test_all_there_once(self):
        self.assertEqual(self.problems(entries()), [])

    def test_a_lost_set(self):
        found = entries()
        del found[f"{PREFIX}loss/2/2"]
        self.assertRegex(self.problems(found)[0], "has None for loss/2/2")

    def test_an_older_value(self):
        found = entries() | {f"{PREFIX}loss/2/2": "0.7"}
        self.assertRegex(self.problems(found)[0], "'0.7' for loss/2/2, acknowledged was '0.5'")

    def test_an_add_applied_twice(self):
        self.assertRegex(self.problems(entries() | {f"/{KEY}": "4"})[0], "counts 4 .* acknowledged were 3")

    def test_an_answer_given_twice(self):
        job = training()
        job.writes[2] = Write(0.2, 0.3, 2)
        self.assertRegex(self.problems(entries(), job)[0], "other numbers than 1 to 3")

    def test_an_empty_store(self):
        self.assertEqual(len(self.problems({})), RANKS + 2)


if __name__ == "__main__":
    unittest.main()
