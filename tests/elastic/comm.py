#!/usr/bin/env python3
"""Shows that DistributedDataParallel goes on in its process group when ranks die in the middle of it.

Part a: 4 ranks are killed one after another, the leader of the store with the first of them. Each is
started again, takes its state from a survivor, and the step that was lost is made again.
Part b: a rank is killed, and three go on.

Exits with 0 only if part a ends with the loss and the weights, to the last bit, of a training that
nothing disturbed, and all ranks of part b with the same. `make demo-comm` builds everything first and
then runs this.
"""
import argparse
import os
import pathlib
import sys

from hosts import Children, Hosts
from cluster import NODES
from demo import Progress, run_demo
from groups import Groups

HERE = pathlib.Path(__file__).resolve().parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=HERE.parent.parent / "target" / "debug",
                        help="folder of holdfast-store, holdfast and holdfast-agent (default: %(default)s)")
    parser.add_argument("--python", default=os.environ.get("HOLDFAST_WHEEL_PYTHON") or sys.executable,
                        help="a Python that can import torch and holdfast (default: %(default)s)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo",
                        help="of the process group; with nccl all ranks share this machine's first GPU (default: %(default)s)")
    parser.add_argument("--part", choices=("a", "b"), help="only this part")
    parser.add_argument("--quick", action="store_true", help="fewer ranks, kills and steps")
    parser.add_argument("--keep", action="store_true", help="keep data and logs also after a success")
    return parser.parse_args()


def parts(options: argparse.Namespace, hosts: Hosts, say: Progress) -> list[tuple[str, Groups, int]]:
    """Each part with its steps."""
    ranks, kills, steps = (3, [0, 1], 200) if options.quick else (4, [0, 1, 2, 3], 400)
    a = Groups(hosts, options.python, say, "comm-a", ranks, kills, returns=True, backend=options.backend)
    b = Groups(hosts, options.python, say, "comm-b", ranks, [ranks - 1], returns=False, backend=options.backend)
    return [(name, part, steps) for name, part in (("a", a), ("b", b)) if options.part in (None, name)]


def play(options: argparse.Namespace, children: Children, hosts: Hosts, say: Progress) -> bool:
    """The whole show; true if everything held."""
    cluster = hosts.cluster
    for node in cluster.addresses:
        cluster.start(node)
    say(f"started {NODES} store nodes: {cluster.store}")
    status = cluster.wait_for_leader()
    say(f"node {status['leader']} leads in term {status['term']}")
    problems = []
    for name, part, steps in parts(options, hosts, say):
        say(f"part {name}: {part.title}")
        reference = None
        if part.returns:
            reference = part.reference(steps)
            say(f"part {name}: undisturbed {reference}")
        part.go(steps)
        part.print_timeline(f"part {name}, {part.title}")
        print(f"  disturbed    {' '.join(sorted(part.results))}")
        problems += [f"part {name}: {problem}" for problem in part.check()]
        if reference is not None:
            print(f"  undisturbed  {reference}")
            if part.results != {reference}:
                problems.append(f"part {name}: ranks ended with {part.results}, undisturbed it is {reference}")
        print()
    for child in children.stop(*(child for child in children.running if child.exit_code is None)):
        problems.append(f"{child.name} did not stop cleanly (exit code {child.exit_code}); see {child.log}")
    for problem in problems:
        print(f"  WRONG: {problem}")
    verdict = "FAILED" if problems else "PASSED. Ranks and the store's leader died, and the training is what it would have been."
    print(f"VERDICT: {verdict}")
    return not problems


def main() -> int:
    return run_demo("this demo", "holdfast-comm-", parse(), play)


if __name__ == "__main__":
    sys.exit(main())
