"""What a call that waits says of whom it waits for, on standard error, with nothing configured. The others
are processes of this program; the one that waits is a program of its own. With HOLDFAST_CONTROL they
belong to the agent's lease, else each has its own."""
import contextlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import holdfast

# Longer than anybody here waits for anything: no lease expires.
TTL = 90
TERMS = dict(world=3, members_min=2, ttl=TTL)
WAITS = """
import sys, holdfast
with holdfast.Job.join(process=int(sys.argv[1]), world=3, members_min=2, ttl=90, timeout=80) as job:
    print("joined", flush=True)
    print("iteration", job.advance().world_size, flush=True)
"""


@contextlib.contextmanager
def waiting(process):
    """A program that joins with this number, and what it says until a line that holds some words."""
    command = [sys.executable, "-c", WAITS, str(process)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def line_with(stream, words):
    for line in stream:
        if words in line:
            return line.strip()
        # Nothing else is said: neither a traceback nor the words of somebody who waits for nobody.
        raise AssertionError(f"it said {line!r}, not {words!r}")
    raise AssertionError(f"it ended before it said {words!r}")


def holds(line, *parts):
    for part in parts:
        assert part in line, (part, line)


def awaited(line):
    """The processes that a line names, together or one by one where their ages differ."""
    named = re.findall(r"process(?:es)? ([0-9, and]+) \(", line.split("it waits for ", 1)[1])
    return [int(number) for numbers in named for number in re.findall(r"[0-9]+", numbers)]


def main():
    jobs = [holdfast.Job.join(process=number, **TERMS) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert [now.world_size for now in pool.map(lambda job: job.advance(timeout=60), jobs)] == [3] * 3

    # A number that somebody has: who that is, and how it is replaced.
    with waiting(2) as second:
        line = line_with(second.stderr, "process 2 of")
        holds(line, "is held on host", f"incarnation {jobs[2].incarnation}, alive, joined")
        holds(line, "`takeover` replaces it at once")
        jobs[2].leave()
        assert second.stdout.readline() == "joined\n", "the number is free"
        # In the round with it: those who live and have not come.
        line = line_with(second.stderr, "has waited 1 s for the next iteration")
        assert awaited(line) == [0, 1], line
        holds(line, "1 has arrived; it waits for process", "(alive on", f"`holdfast why --job {jobs[0].name}`")
        with ThreadPoolExecutor(2) as pool:
            assert [now.world_size for now in pool.map(lambda job: job.advance(timeout=60), jobs[:2])] == [3] * 2
        assert second.stdout.readline() == "iteration 3\n"
        assert second.wait(timeout=60) == 0 and second.stderr.read() == ""

    # The loop is over.
    for job in jobs:
        job.leave()
    with waiting(3) as late:
        assert late.stdout.readline() == "joined\n"
        line = line_with(late.stderr, "has waited 1 s for the next iteration")
        assert awaited(line) == [0, 1, 2], line
        holds(line, "it waits for process", "(left ", "their loop is over: start all of them again, or open a new run")
    print("all good", flush=True)


main()
