#!/usr/bin/env python3
"""Shows that training goes on when rank 0's host and the store's leader die in the same second.

Part a: an unmodified DDP script under two torchruns with --rdzv-backend=holdfast. Node 0's torchrun,
its ranks and its agent are killed together with the leader of the store, and started again; training
goes on from its checkpoint.
Part b: a loop with holdfast.Job. Rank 0, its agent and the leader are killed; the survivors agree on
who is left and go on in their processes; rank 0 comes back into an iteration that all agree on.

Exits with 0 only if both end with the loss and the weights, to the last bit, of a training that
nothing disturbed, and the store has everything that it acknowledged, once. `make demo-elastic` builds
everything first and then runs this.
"""
import argparse
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable

from hosts import Children, Failure, Hosts
from cluster import NODES, POLL_SECONDS, Cluster
from children import free_ports
from iterations import Iterations
from torchruns import Torchruns
from writer import KEY, Writer

HERE = pathlib.Path(__file__).resolve().parent
AGENT_SECONDS = 30.0
RUN = "writes"


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
    parser.add_argument("--python", default=os.environ.get("HOLDFAST_WHEEL_PYTHON") or sys.executable,
                        help="a Python that can import torch and holdfast (default: %(default)s)")
    parser.add_argument("--part", choices=("a", "b"), help="only this part")
    parser.add_argument("--quick", action="store_true", help="fewer ranks and steps")
    parser.add_argument("--keep", action="store_true", help="keep data and logs also after a success")
    return parser.parse_args()


def sizes(quick: bool) -> list[tuple[str, type[Torchruns] | type[Iterations], tuple[int, int]]]:
    """Each part with its ranks and steps."""
    return [("a", Torchruns, (2, 100) if quick else (4, 150)), ("b", Iterations, (3, 450) if quick else (4, 500))]


def start_writer(hosts: Hosts) -> Writer:
    """Somebody who writes all the time, through an agent of its own."""
    cluster, port = hosts.cluster, free_ports(1)[0]
    hosts.add("host of the writer").start("writer-agent", [
        str(cluster.binaries / "holdfast-agent"), "serve", "--store", cluster.store, "--job", cluster.job,
        "--run", RUN, "--tcpstore", f"127.0.0.1:{port}"])
    deadline = time.monotonic() + AGENT_SECONDS
    while time.monotonic() < deadline:
        cluster.children.check()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                writer = Writer(port)
                writer.start()
                return writer
        time.sleep(POLL_SECONDS)
    raise Failure(f"the agent does not listen on port {port} after {AGENT_SECONDS:.0f} s")


def check_writes(cluster: Cluster, results: list[int], nodes: list[int]) -> list[str]:
    """Every acknowledged write is there, once: in the cluster, and on the nodes that were killed."""
    problems = []
    if results != list(range(1, len(results) + 1)):
        problems.append(f"{len(results)} writes were answered with other numbers than 1 to {len(results)}")
    for node in [None, *nodes]:
        problems += cluster.checked(RUN, node, lambda entries, where: check_count(entries, where, len(results)))
    return problems


def check_count(entries: dict[str, str], where: str, writes: int) -> list[str]:
    found = entries.get("/" + KEY)
    return [] if found == str(writes) else [f"{where} counts {found} writes, acknowledged were {writes}"]


def play(options: argparse.Namespace, children: Children, hosts: Hosts, say: Progress) -> bool:
    """The whole show; true if everything held."""
    cluster = hosts.cluster
    for node in cluster.addresses:
        cluster.start(node)
    say(f"started {NODES} store nodes: {cluster.store}")
    status = cluster.wait_for_leader()
    say(f"node {status['leader']} leads in term {status['term']}")
    writer = start_writer(hosts)

    problems, rows, killed = [], [], []
    for name, kind, (ranks, steps) in sizes(options.quick):
        if options.part not in (None, name):
            continue
        part = kind(hosts, options.python, say, ranks)
        say(f"part {name}: {part.title}; first {part.reference_title}, undisturbed, for comparison")
        reference = part.reference(steps)
        say(f"part {name}: {reference}")
        part.go(steps)
        part.print_timeline(f"part {name}, {part.title}")
        print()
        problems += [f"part {name}: {problem}" for problem in part.check()]
        if part.results != {reference}:
            problems.append(f"part {name}: ranks ended with {part.results}, undisturbed it is {reference}")
        pauses = [write.seconds for write in writer.writes if write.answered > part.leader.killed]
        rows.append((name, reference, sorted(part.results), max(pauses)))
        killed.append(part.leader.node)
    results = [write.result for write in writer.stop()]
    problems += check_writes(cluster, results, killed)
    for child in children.stop(*(child for child in children.running if child.exit_code is None)):
        problems.append(f"{child.name} did not stop cleanly (exit code {child.exit_code}); see {child.log}")
    return verdict(rows, len(results), problems)


def verdict(rows: list, writes: int, problems: list[str]) -> bool:
    """Prints the results side by side, and what they come to."""
    for name, reference, results, pause in rows:
        print(f"  part {name}   undisturbed         {reference}")
        for result in results:
            print(f"           disturbed           {result}")
        print(f"           longest pause of a write beside it {1000 * pause:.0f} ms")
    print(f"  {writes} acknowledged writes beside them\n")
    for problem in problems:
        print(f"  WRONG: {problem}")
    if problems:
        print("\nVERDICT: FAILED")
    else:
        print("VERDICT: PASSED. Rank 0's host and the store's leader died in the same second; loss and weights are\n"
              "those of an undisturbed training to the last bit, and every acknowledged write is in the store, once.")
    return not problems


def interrupted(*_) -> None:
    raise KeyboardInterrupt


Play = Callable[[argparse.Namespace, Children, Hosts, Progress], bool]


def run_demo(name: str, prefix: str, options: argparse.Namespace, play: Play) -> int:
    """Plays a demo in a folder of its own, which stays if it fails. Answers the exit code."""
    if os.environ.get("NO_TORCH"):
        print(f"SKIPPED: {name} trains with PyTorch, and NO_TORCH is set")
        return 0
    if options.python == "none":
        print(f"SKIPPED: {name} needs the holdfast wheel, which could not be built on this machine")
        return 0
    signal.signal(signal.SIGTERM, interrupted)
    say = Progress()
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    say(f"data and logs: {folder}")
    children, passed = Children(folder), False
    hosts = Hosts(Cluster(options.binaries, children, "beside"))
    try:
        passed = play(options, children, hosts, say)
    except Failure as failure:
        print(f"\nFAILED: {failure}\n\nThe last lines of everybody's log:\n{children.tails()}", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
        return 130
    finally:
        hosts.kill_all()
        children.kill_all()
        if passed and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"data and logs are kept in {folder}", flush=True)
    return 0 if passed else 1


def main() -> int:
    return run_demo("the elastic demo", "holdfast-elastic-", parse(), play)


if __name__ == "__main__":
    sys.exit(main())
