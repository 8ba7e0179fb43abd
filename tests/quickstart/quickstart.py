#!/usr/bin/env python3
"""Shows that a training job does not notice losing the leader of its store.

Starts a cluster of three nodes and an agent on this machine, trains with four ranks through
them, trains once more while the leader is killed with SIGKILL and started again, and compares.
Exits with 0 only if both trainings end with exactly the same loss and every acknowledged write
is in the store, once. `make quickstart` builds everything first and then runs this.
"""
import argparse
import functools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from children import Children, Failure
from cluster import NODES, Cluster
from training import RANKS, Disturbance, Training
from verdict import check_writes, compare, print_timeline

HERE = pathlib.Path(__file__).resolve().parent
JOB = "quickstart"
# The built-in workload asks the store several times in each step, the PyTorch one in every second.
STEPS_TORCH, STEPS_WORKLOAD = 120, 80
# Before the middle, where the script makes a new group: the store is without a leader then.
KILLED_STEPS_BEFORE = 2


class Progress:
    """Lines with the time since the start, so that nobody stares at silence."""

    def __init__(self):
        self.started = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self.started:5.1f} s] {line}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=HERE.parent.parent / "target" / "debug",
                        help="folder of holdfast-store, holdfast and holdfast-agent (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="a Python that can import torch")
    parser.add_argument("--no-torch", action="store_true", default=bool(os.environ.get("NO_TORCH")),
                        help="train with the built-in workload instead of PyTorch (also NO_TORCH=1)")
    parser.add_argument("--steps", type=int, help=f"steps of each training (default: {STEPS_TORCH}, "
                        f"of the built-in workload {STEPS_WORKLOAD})")
    parser.add_argument("--keep", action="store_true", help="keep data and logs also after a success")
    options = parser.parse_args()
    options.steps = options.steps or (STEPS_WORKLOAD if options.no_torch else STEPS_TORCH)
    return options


def play(options: argparse.Namespace, children: Children, say: Progress) -> bool:
    """The whole show; true if everything held."""
    for binary in ("holdfast-store", "holdfast", "holdfast-agent"):
        if not (options.binaries / binary).exists():
            raise Failure(f"{options.binaries / binary} does not exist: build it with "
                          "`cargo build --bins`, or run `make quickstart`")
    cluster = Cluster(options.binaries, children, JOB)
    for node in cluster.addresses:
        cluster.start(node)
    say(f"started {NODES} nodes: {cluster.store}")
    status = cluster.wait_for_leader()
    say(f"node {status['leader']} leads in term {status['term']}")

    script = HERE / ("workload.py" if options.no_torch else "train.py")
    python = sys.executable if options.no_torch else options.python

    def train(run: str, disturbance: Disturbance | None) -> Training:
        training = Training(cluster, run, [python, str(script), "--steps", str(options.steps)], say)
        training.go(options.steps, disturbance)
        return training

    undisturbed = train("undisturbed", None)
    disturbance = Disturbance(cluster, options.steps // 2 - KILLED_STEPS_BEFORE, say)
    disturbed = train("leader-killed", disturbance)

    print_timeline(disturbed, disturbance)
    problems = []
    for training, node in (undisturbed, None), (disturbed, None), (disturbed, disturbance.node):
        problems += cluster.checked(training.run, node, functools.partial(check_writes, training))
    unclean = [*undisturbed.unclean, *disturbed.unclean, *children.stop(*cluster.nodes.values())]
    for child in unclean:
        problems.append(f"{child.name} did not stop cleanly (exit code {child.exit_code}); see {child.log}")
    return compare(undisturbed, disturbed, problems)


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, interrupted)
    say = Progress()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="holdfast-quickstart-"))
    children = Children(folder)
    workload = ("a built-in workload, not PyTorch (NO_TORCH)" if options.no_torch
                else "an unmodified PyTorch DDP script over gloo")
    say(f"{NODES} store nodes, an agent, and {RANKS} ranks of {workload}")
    say(f"data and logs: {folder}")
    passed = False
    try:
        passed = play(options, children, say)
    except Failure as failure:
        print(f"\nFAILED: {failure}\n\nThe last lines of everybody's log:\n{children.tails()}", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
        return 130
    finally:
        children.kill_all()
        if passed and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"data and logs are kept in {folder}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
