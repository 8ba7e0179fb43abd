"""Every verb and every error of holdfast.Job, by four processes of a job: threads of this program,
each with a life and a lease of its own. Waits that kept the GIL would keep the others from coming."""
import contextlib
import os
import pathlib
import pickle
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import holdfast

WORLD = 4
# Longer than anybody here waits for anything: no lease expires.
TTL = 90


def raises(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{call} raised no {kind.__name__}")


def together(jobs, call):
    """What each of them says, called by all at the same time."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(call, jobs))


def one(answers):
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


def rounds(jobs):
    live = one(together(jobs, lambda job: job.live_processes(timeout=60)))
    assert live.processes == (0, 1, 2, 3) and len(live) == 4, live
    assert 2 in live and 7 not in live and jobs[1].incarnation == live.members[1].incarnation

    answers = together(jobs, lambda job: job.advance(timeout=60))
    assert [now.rank for now in answers] == [0, 1, 2, 3], answers
    first = one([(now.iteration, now.generation, now.world_size, now.members) for now in answers])
    assert first[0] >= 1 and first[2] == WORLD and answers[0].stop is None
    second = together(jobs, lambda job: job.advance(timeout=60))[0]
    assert second.iteration == first[0] + 1 and second.generation > first[1]
    assert jobs[0].iteration() == (second.iteration, True)
    return second


def votes(jobs, base):
    verdict = one(together(jobs, lambda job: job.vote("go", True, base=base, timeout=60)))
    assert verdict and verdict.against == ()
    verdict = one(together(jobs, lambda job: job.vote("go", job.process != 2, base=base, timeout=60)))
    assert not verdict and [who.process for who in verdict.against] == [2], verdict
    verdict = one(together(jobs, lambda job: job.vote("hash", "abc", "unanimous", timeout=60)))
    assert verdict and verdict.value == b"abc"
    verdict = one(together(jobs, lambda job: job.vote("hash", f"abc{job.process}", "unanimous", timeout=60)))
    assert not verdict
    choose = {0: ("b", 1), 1: ("a", 1), 2: ("b", 1), 3: ("c", 2)}
    verdict = one(
        together(
            jobs,
            lambda job: job.vote(
                "pick", choose[job.process][0], "plurality", priority=choose[job.process][1], timeout=60
            ),
        )
    )
    assert verdict and verdict.value == b"b", verdict
    raises(TypeError, jobs[0].vote, "go", "yes")
    assert raises(holdfast.Refused, jobs[0].vote, "go", "x", "most").code == "invalid_request"


def blocks(jobs):
    def work(job):
        told = []
        for step in range(4):
            try:
                with job.atomic(timeout=60) as live:
                    told.append(("in", live.generation, len(live)))
                    if step == 1 and job.process == 3:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            except holdfast.BlockFailed as error:
                told.append(("failed", tuple(who.process for who in error.against)))
                assert pickle.loads(pickle.dumps(error)).against == error.against
                assert "process 3" in str(error) and error.retryable and error.outcome == "applied"
        return told

    told = one(together(jobs, work))
    assert [what[0] for what in told] == ["in", "in", "failed", "in"] and told[2][1] == (3,), told


def errors(jobs):
    error = raises(holdfast.RoundTimeout, jobs[0].live_processes, "alone", timeout=3)
    assert isinstance(error, TimeoutError) and error.code == "timeout" and error.retryable, vars(error)
    assert error.outcome == "none", vars(error)
    for part in ("alone", "1 had arrived", "process 1 on here", "(alive)", "process 3"):
        assert part in str(error), (part, str(error))

    # The call was withdrawn: the next one is not met by a ghost of it.
    raises(holdfast.RoundTimeout, jobs[1].live_processes, "alone", timeout=3)
    one(together(jobs, lambda job: job.live_processes("alone", timeout=60)))

    assert raises(holdfast.Refused, holdfast.Job.join, store="nonsense").code == "invalid_request"
    assert raises(holdfast.Refused, holdfast.Job.join, job="a/b").code == "invalid_request"
    for wrong in ({"process": -1}, {"world": -1}, {"members_min": 2**32}, {"active_min": 1.5}, {"run": "auto"}):
        error = raises(holdfast.Refused, holdfast.Job.join, **wrong)
        assert error.code == "invalid_request" and next(iter(wrong)) in str(error), error
    raises(holdfast.Refused, jobs[0].progress, -1)
    raises(holdfast.Refused, jobs[0].fence, -1)
    raises(holdfast.Refused, holdfast.Job.join, role="spare")
    error = raises(holdfast.Refused, holdfast.Job.join, job="verbs", process=1, host="there", timeout=5)
    assert "alive on host here" in str(error), error
    error = raises(holdfast.HoldfastError, holdfast.Job.join, store="127.0.0.1:1", timeout=0.5)
    assert error.code in ("timeout", "unavailable"), vars(error)


def interrupted(job):
    """Ctrl-C ends a wait, and what it waited for is withdrawn."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    raises(KeyboardInterrupt, job.live_processes, "interrupted", timeout=60)
    for _ in range(600):
        if not job.waiting("interrupted"):
            return
        time.sleep(0.1)
    raise AssertionError("an interrupted call still waits")


def sockets():
    """Connections of this program."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return found


def interrupted_join():
    """Ctrl-C ends a join, and its lease is not renewed for ever."""
    before = sockets()
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    raises(KeyboardInterrupt, holdfast.Job.join, "verbs", process=1, host="there", timeout=60)
    for _ in range(600):
        if sockets() <= before:
            return
        time.sleep(0.1)
    raise AssertionError("an interrupted join keeps its connection")


def forked(jobs):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            error = raises(holdfast.ForkedError, jobs[0].advance)
            assert "before the process forked" in str(error)
            raises(holdfast.ForkedError, jobs[0].leave)
            # It can be somebody of its own.
            with holdfast.Job.join(job="forked", process=0, world=1) as own:
                assert own.advance(timeout=60).members == ((0, own.incarnation),)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    one(together(jobs, lambda job: job.live_processes("after the fork", timeout=60)))


def main():
    jobs = [holdfast.Job.join("verbs", process=n, world=WORLD, host="here", ttl=TTL) for n in range(WORLD)]
    now = rounds(jobs)
    print("rounds", flush=True)
    votes(jobs, now.generation)
    blocks(jobs)
    print("votes and blocks", flush=True)
    errors(jobs)
    interrupted(jobs[0])
    interrupted_join()
    forked(jobs)
    print("errors", flush=True)

    fence = jobs[0].fence()
    assert fence[:2] == (jobs[0].incarnation, jobs[0]._generation) and jobs[0].valid_for > 0
    jobs[1].check(fence, timeout=60)
    raises(holdfast.Refused, jobs[1].check, "not a token")
    checkpoint = os.path.join(tempfile.mkdtemp(), "checkpoint")
    for life, text in ((jobs[0], "first"), (jobs[2], "second")):
        with life.replacing(checkpoint) as written, open(written, "w") as file:
            file.write(text)
    with contextlib.suppress(ZeroDivisionError), jobs[0].replacing(checkpoint) as written:
        pathlib.Path(written).write_text("half")
        raise ZeroDivisionError
    assert pathlib.Path(checkpoint).read_text() == "second"
    kinds = [event.kind for event in jobs[0].events()][-6:]
    assert kinds == ["registered"] * 4 + ["advanced"] * 2, kinds

    jobs[3].leave()
    jobs[3].leave()
    assert not raises(holdfast.HoldfastError, jobs[3].advance).retryable
    now = together(jobs[:3], lambda job: job.advance(timeout=60))[0]
    assert now.processes == (0, 1, 2) and [(who.process, who.why) for who in now.dropped] == [(3, "left")], now

    again = holdfast.Job.join("verbs", process=2, world=WORLD, host="there", takeover=True, ttl=TTL)
    assert again.incarnation > jobs[2].incarnation
    # A life that is over replaces nothing, and leaves nothing behind.
    old = f"{jobs[2].name}:{jobs[2].run}:2:{jobs[2].incarnation}:1"
    assert str(again.incarnation) in str(raises(holdfast.Fenced, jobs[0].check, old))

    def replace() -> None:
        with jobs[2].replacing(checkpoint) as written:
            pathlib.Path(written).write_text("of a dead life")

    raises(holdfast.Fenced, replace)
    assert os.listdir(os.path.dirname(checkpoint)) == ["checkpoint"]
    assert pathlib.Path(checkpoint).read_text() == "second"
    error = raises(holdfast.Fenced, jobs[2].advance, timeout=60)
    assert error.code == "fenced" and "superseded" in str(error), error
    later = together([jobs[0], jobs[1], again], lambda job: job.advance(timeout=60))[0]
    assert later.iteration == now.iteration + 1 and again.fence() > fence
    # Nobody that leaves keeps the others waiting for its lease.
    del again, jobs[2:]
    assert together(jobs, lambda job: job.advance(timeout=60))[0].processes == (0, 1)
    print("all good", flush=True)


main()
