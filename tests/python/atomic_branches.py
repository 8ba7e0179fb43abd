"""An atomic block as a program has it, by three processes of a job, again and again: each time one of them is
killed, or raises, one line later than before, in the program itself and in the library's half of the block.
No two processes ever take different branches.

Needs HOLDFAST_CONTROL: the agent tells of a killed process at once.
"""
import os
import signal
import subprocess
import sys

import holdfast

WORLD, PATIENCE = 3, 120
VICTIM = 1


class Struck(Exception):
    """What the victim raises."""


def program(job):
    try:
        with job.atomic(timeout=PATIENCE) as live:
            total = sum(live.processes)
            assert total <= 3
    except Exception as error:
        taken = "A", str(error)
    else:
        taken = "B", ""
    print("branch", *taken, flush=True)


def strike_at(line, kind):
    """Strikes this process at a line of `program`, counted from 1. One that is to be killed, also at those of
    the library's `atomic`."""
    seen = 0

    def in_the_library(code):
        return kind == "kill" and code.co_name == "atomic" and code.co_filename.endswith("_job.py")

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code is not program.__code__ and not in_the_library(frame.f_code):
            return None
        seen += event == "line"
        if event == "line" and seen == line:
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Struck(f"at line {line}")
        return trace

    sys.settrace(trace)


def worker(number, line, kind):
    with holdfast.Job.join(process=number, world=WORLD, timeout=PATIENCE) as job:
        job.advance(timeout=PATIENCE)
        if number == VICTIM:
            strike_at(line, kind)
        program(job)
        sys.settrace(None)


def start(number, line, kind):
    command = [sys.executable, "-u", __file__, str(number), str(line), kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def case(line, kind):
    """The branch that all took, or none if nobody did; and how the victim ended."""
    programs = [start(number, line, kind) for number in range(WORLD)]
    told = [program.communicate(timeout=2 * PATIENCE)[0] for program in programs]
    branches = {text.split()[1] for text in told if text.startswith("branch ")}
    assert len(branches) == 1, (line, kind, told)
    for number, program in enumerate(programs):
        assert number == VICTIM or program.returncode == 0, (line, kind, told)
        assert number == VICTIM or told[number].startswith("branch "), (line, kind, told)
    return branches.pop(), programs[VICTIM].returncode, told


def killed_at_each_line():
    seen, line = [], 0
    while True:
        line += 1
        branch, ended, told = case(line, "kill")
        seen.append(branch)
        print("killed at line", line, "branch", branch, flush=True)
        if branch == "A":
            assert all(f"process {VICTIM} " in told[other] for other in (0, 2)), told
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, ended
    # Before it enters, in the block, behind it.
    assert seen[0] == "B" and "A" in seen and seen[-1] == "B" and len(seen) > 12, seen


def raised_in_the_body():
    """The first line is `try`, the second enters, the third and the fourth are the body's. It leaves at once, so
    perhaps before the others come to the end of the block; they hear why it failed all the same."""
    for line in (3, 4):
        branch, ended, told = case(line, "raise")
        print(f"raised at line {line} branch {branch}", flush=True)
        assert (branch, ended) == ("A", 0), (branch, ended)
        assert told[VICTIM] == f"branch A at line {line}\n", told
        for other in (0, 2):
            said = f"process {VICTIM} (incarnation "
            assert said in told[other] and f"failed by Struck: at line {line}" in told[other], told


def main():
    if len(sys.argv) > 1:
        return worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    raised_in_the_body()
    killed_at_each_line()
    print("all good", flush=True)


main()
