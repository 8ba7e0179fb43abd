"""Loops over iterations: through a regrouping, and to each of their ends; each process with a lease of its own.

    job_iterations.py
"""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import holdfast

TTL = 20


def raises(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{call} raised no {kind.__name__}")


def join(name, process, **policy):
    return holdfast.Job.join(name, process=process, host=f"host{process}", ttl=TTL, **policy)


def regrouped(pool):
    """One member goes on to the next iteration while the others are in rounds of all: they see no error, and all
    meet there, with a newcomer that has waited meanwhile."""
    jobs = [join("regrouped", process, world=3) for process in range(3)]
    met, newcomer_waits = threading.Event(), threading.Event()

    def sizes(job):
        found = []
        for iteration in job.iterations(timeout=60):
            found.append((iteration.iteration, len(iteration.members)))
            with iteration:
                if iteration.iteration == 2:
                    break
                while not (job.process == 2 and met.is_set()):
                    job.live_processes("step", timeout=60)
                    if newcomer_waits.is_set():
                        met.set()
        return found

    loops = [pool.submit(sizes, job) for job in jobs]
    while not jobs[0].iteration()[0]:
        time.sleep(0.05)
    newcomer = join("regrouped", 3, world=3)
    loops.append(pool.submit(sizes, newcomer))
    while 3 not in [member.process for member in jobs[0].waiting("advance")]:
        time.sleep(0.05)
    newcomer_waits.set()
    assert [one.result(60) for one in loops] == [[(1, 3), (2, 4)]] * 3 + [[(2, 4)]]
    for job in (*jobs, newcomer):
        job.leave()


def other_errors(pool):
    """A block of an iteration ends by itself for a regrouping alone."""
    with join("errors", 0, world=1) as job:
        [iteration] = [iteration for iteration, _ in zip(job.iterations(), range(1))]
        for kind in (OSError, holdfast.StoreLost, holdfast.Fenced, KeyboardInterrupt):
            try:
                with iteration:
                    raise kind("of its own")
            except kind:
                continue
            raise AssertionError(f"{kind} is nothing to go on from")
        with iteration:
            raise holdfast.Regroup("somebody waits")


def stopped(pool):
    """Too few are left: the loop ends, and tells why."""
    jobs = [join("stopped", process, world=3, active_min=2) for process in range(3)]
    assert [job.stopped for job in jobs] == [None] * 3

    def numbers(job):
        found = []
        for iteration in job.iterations(timeout=60):
            found.append(iteration.iteration)
            if job.process < 2:
                job.leave()
                break
        return found

    assert list(pool.map(numbers, jobs)) == [[1], [1], [1]]
    assert jobs[2].stopped == holdfast.Stop("too_few", 1, 2), jobs[2].stopped
    jobs[2].leave()


def passed_over(pool):
    """A process without a rank waits for an iteration in which it has one."""
    assignment = holdfast.Assignment().max_active(1)
    jobs = [join("passed", process, world=2, assignment=assignment) for process in (0, 1)]

    def ranks(job):
        found = []
        for iteration in job.iterations(timeout=60):
            found.append((iteration.rank, len(iteration.members)))
            if len(found) == 3:
                break
        job.leave()
        return found

    assert list(pool.map(ranks, jobs)) == [[(0, 2)] * 3, [(0, 1)] * 3]


def spare(pool):
    """The loop of a standby that is not needed any more ends."""
    only, other = join("spare", 0, world=1), join("spare", 1, world=1, role="standby")
    assert only.advance(timeout=60).rank == 0
    waiting = pool.submit(list, other.iterations(timeout=60))
    while not other.waiting("advance"):
        time.sleep(0.05)
    only.leave()
    assert waiting.result(60) == []
    assert other.stopped is None
    other.leave()


def replaced(pool):
    """An incarnation that the store has ended gets that error; its loop does not just end."""
    job, taken = join("replaced", 0, world=1), []

    def go_on():
        for _ in job.iterations(timeout=60):
            if not taken:
                how = {"world": 1, "host": "other", "ttl": TTL, "takeover": True}
                taken.append(holdfast.Job.join("replaced", process=0, **how))

    raises(holdfast.Fenced, go_on)
    taken[0].leave()


with join("refused", 0) as job:
    # At the call, and not at the first iteration.
    raises(holdfast.Refused, job.iterations, -1)
with ThreadPoolExecutor(8) as pool:
    for part in (regrouped, other_errors, stopped, passed_over, spare, replaced):
        part(pool)
        print(part.__name__, flush=True)
print("all good", flush=True)
