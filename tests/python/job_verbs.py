"""Every verb and every error of holdfast.Job, by four processes of a job: threads of this program,
each with a life and a lease of its own. Waits that kept the GIL would keep the others from coming."""
import contextlib
import logging
import os
import pathlib
import pickle
import signal
import subprocess
import sys
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


def votes(jobs):
    # By default among the ranked members of the latest iteration.
    verdict = one(together(jobs, lambda job: job.vote("go", True, timeout=60)))
    assert verdict and verdict.against == ()
    verdict = one(together(jobs, lambda job: job.vote("go", job.process != 2, timeout=60)))
    assert not verdict and [(who.process, who.why) for who in verdict.against] == [(2, "voted no")], verdict
    verdict = one(together(jobs, lambda job: job.vote("hash", "abc", "unanimous", among="all", timeout=60)))
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
    error = raises(TypeError, jobs[0].vote, "go", "yes")
    assert str(error) == "value is 'yes' (str); it has to be True or False by the rule 'and'", error
    error = raises(ValueError, jobs[0].vote, "go", True, rule="majority")
    words = "rule is 'majority'; it has to be 'and', 'unanimous' or 'plurality'; did you mean 'plurality'?"
    assert str(error) == words and error.code == "invalid_request", error


def scopes(jobs, now):
    """Among whom a round is."""
    verdict = one(together(jobs[:2], lambda job: job.vote("pair", True, among=[1, 0], timeout=60)))
    assert verdict and verdict.against == ()
    pair = one(together(jobs[2:], lambda job: job.live_processes("pair", among=(2, 3), timeout=60)))
    assert pair.processes == (2, 3)
    # The members of a closed round over all, by its answer or its generation.
    live = one(together(jobs, lambda job: job.live_processes("all of them", timeout=60)))
    assert one(together(jobs, lambda job: job.vote("pair", True, among=live, timeout=60)))
    assert one(together(jobs, lambda job: job.live_processes("x", among=now.generation, timeout=60))) != live
    # One tag among two generations is two votes, and a set is another one.
    def vote(value, among, of):
        return lambda: one(together(of, lambda job: job.vote("t", value, among=among, timeout=60)))

    with ThreadPoolExecutor(3) as pool:
        votes = [vote(False, live, jobs), vote(True, now, jobs), vote(False, [2, 3], jobs[2:])]
        assert [bool(vote.result()) for vote in map(pool.submit, votes)] == [False, True, False]
    error = raises(holdfast.Refused, jobs[0].vote, "pair", True, among=[2, 3], timeout=60)
    assert error.code == "conflict" and "not one of those" in str(error), error
    error = raises(holdfast.Refused, jobs[0].live_processes, "x", among=now.generation + 10**6, timeout=60)
    assert error.code == "generation_unknown", vars(error)
    for wrong in ("everybody", [], [0, -1], [True], b"0", 1.5, {0: 1}, None):
        assert "among" in str(raises(ValueError, jobs[0].live_processes, among=wrong))


def filtered():
    """Who was left out by a filter holds up nobody, and is told at once that it does not vote."""
    how = dict(world=3, assignment=[{"divisible_by": {"divisor": 2}}], host="here", ttl=TTL)
    jobs = [holdfast.Job.join("filtered", process=n, **how) for n in range(3)]
    for _ in range(2):
        now = together(jobs, lambda job: job.advance(timeout=60))
        assert [one.rank for one in now] == [0, 1, None], now
        error = raises(holdfast.Refused, jobs[2].vote, "go", True)
        assert f"process 2 has no rank in iteration {now[0].iteration}" in str(error) and not error.retryable, error
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(jobs[2].advance, timeout=60)
            assert one(together(jobs[:2], lambda job: job.vote("go", True, timeout=60)))
            together(jobs[:2], lambda job: job.advance(timeout=60))
            assert waiting.result().rank is None
    for job in jobs:
        job.leave()


def regrouped(jobs):
    """A round that cannot close without somebody who waits in an advance ends: all go there."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(jobs[3].advance, timeout=60)
        for error in together(jobs[:3], lambda job: raises(holdfast.Regroup, job.live_processes, timeout=60)):
            assert (error.code, error.retryable, error.outcome) == ("regroup", True, "none"), vars(error)
            assert "process 3" in str(error), error
        now = together(jobs[:3], lambda job: job.advance(timeout=60))
        assert waiting.result().generation == now[0].generation


def over():
    """A spare is told that it is not needed any more."""
    how = dict(host="here", ttl=TTL)
    only, spare = holdfast.Job.join("over", process=0, **how), holdfast.Job.join("over", process=1, role="standby", **how)
    only.advance(timeout=60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(raises, holdfast.Over, spare.advance, timeout=60)
        only.leave()
        error = waiting.result()
    assert (error.code, error.retryable, error.outcome) == ("over", False, "none"), vars(error)
    raises(holdfast.Over, spare.advance, timeout=60)
    spare.leave()


def blocks(jobs):
    def work(job):
        told = []
        for step in range(3):
            try:
                with job.atomic(timeout=60) as live:
                    if step == 1 and job.process == 3:
                        raise ZeroDivisionError("the loss\nis " + 1000 * "so ")
            except ZeroDivisionError:
                told.append(("failed", live.generation, len(live)))
            except holdfast.BlockFailed as error:
                told.append(("failed", error.live.generation, len(error.live)))
                assert pickle.loads(pickle.dumps(error)).against == error.against
                assert error.retryable and error.outcome == "applied"
                assert [who.process for who in error.against] == [3], error.against
                words = f"process 3 (incarnation {jobs[3].incarnation}): failed by ZeroDivisionError: the loss is so so"
                assert words in str(error) and len(str(error).encode()) < 300, error
            else:
                told.append(("succeeded", live.generation, len(live)))
        return told

    told = one(together(jobs, work))
    assert [(what, count) for what, _, count in told] == [("succeeded", 4), ("failed", 4), ("succeeded", 4)], told

    # One that stops waiting at the end makes it fail for all.
    def impatient(job):
        while True:
            try:
                with job.atomic(timeout=1 if job.process == 0 else 60):
                    if job.process != 0:
                        gave_up.wait(60)
                return
            except holdfast.RoundTimeout:
                # The same time is for entering, for which a slow machine may need more: it enters again.
                assert job.process == 0

    gave_up = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        first, *others = [pool.submit(raises, holdfast.BlockFailed, impatient, job) for job in jobs]
        error = first.result()
        gave_up.set()
        assert isinstance(error.__cause__, holdfast.RoundTimeout) and "before the deadline" in str(error), error
        assert error.against == () and pickle.loads(pickle.dumps(error)).args == error.args
        for other in others:
            told = [(who.process, who.why) for who in other.result().against]
            assert told == [(0, "stopped waiting at the exit")], told


def endings():
    """How a block failed by those who are gone, and how those are told of that left it."""

    def join(number, **how):
        return holdfast.Job.join("endings", process=number, host="here", ttl=TTL, **how)

    def enter(job):
        block = job.atomic(timeout=60)
        block.__enter__()
        return block

    def leaves_by(error):
        with contextlib.suppress(BaseException), join(1) as other:
            blocks = together([first, other], enter)
            raise error
        error = raises(holdfast.BlockFailed, blocks[0].__exit__, None, None, None)
        return [who.why for who in error.against if who.process == 1]

    with join(0) as first:
        assert leaves_by(OSError("disk full")) == ["left by an exception: OSError: disk full"]
        assert leaves_by(KeyboardInterrupt()) == ["left by an exception: KeyboardInterrupt"]
        assert leaves_by(SystemExit(3)) == ["exited with code 3"]
        assert leaves_by(SystemExit()) == ["exited with code 0"]
        # Also without `with`, at the end of the program.
        program = "import holdfast; job = holdfast.Job.join('endings', process=2); raise OSError('no disk')"
        assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == 1
        causes = [event.details["cause"] for event in first.events() if event.kind == "ended"]
        assert causes[0] == {"raised": {"error": "OSError: disk full"}}, causes
        assert causes[-1] == {"raised": {"error": "OSError: no disk"}}, causes


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
    assert "did you mean 'standby'?" in str(raises(ValueError, holdfast.Job.join, role="stand-by"))
    os.environ["RANK"] = "one"
    error = raises(ValueError, holdfast.Job.join)
    assert str(error) == "the environment variable RANK is 'one'; it has to be a whole number", error
    del os.environ["RANK"]
    raises(holdfast.Refused, jobs[0].progress, -1)
    raises(holdfast.Refused, jobs[0].fence, -1)
    raises(holdfast.Refused, holdfast.Job.join, role="spare")
    error = raises(holdfast.Refused, holdfast.Job.join, job="verbs", process=1, host="there", timeout=5)
    assert "alive on host here" in str(error), error
    error = raises(holdfast.HoldfastError, holdfast.Job.join, store="127.0.0.1:1", timeout=0.5)
    assert error.code in ("timeout", "unavailable"), vars(error)


def gathered(jobs):
    """Everybody gets what everybody brought, and what one process brought."""
    all_of_them = one(together(jobs, lambda job: job.gather(b"of %d" % job.process, timeout=60)))
    assert all_of_them.values == tuple(b"of %d" % n for n in range(WORLD)), all_of_them
    assert all_of_them.of(2) == b"of 2" and 3 in all_of_them
    pair = one(together(jobs[:2], lambda job: job.gather(b"", "pair", among=(0, 1), timeout=60)))
    assert pair.processes == (0, 1) and pair.values == (b"", b"")
    seed = one(together(jobs, lambda job: job.broadcast(b"seed" if job.process == 2 else None, 2, timeout=60)))
    assert seed == b"seed"
    error = raises(holdfast.Refused, jobs[0].gather, bytes(1 << 17), "long", among=(0,), timeout=60)
    assert "payload_bytes_max" in str(error), error
    raises(TypeError, jobs[0].gather, "text")
    raises(TypeError, jobs[0].broadcast, None, 0)
    error = raises(holdfast.HoldfastError, jobs[0].broadcast, None, 3, "away", among=(0,), timeout=60)
    assert "process 3" in str(error), error


def interrupted(job):
    """Ctrl-C ends a wait, and what it waited for is withdrawn."""

    def interrupt():
        while not job.waiting("interrupted"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
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

    def interrupt():
        for _ in range(600):
            if sockets() > before:
                break
            time.sleep(0.05)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    raises(KeyboardInterrupt, holdfast.Job.join, "verbs", process=1, host="there", timeout=60)
    for _ in range(600):
        if sockets() <= before:
            return
        time.sleep(0.1)
    raise AssertionError("an interrupted join keeps its connection")


def interrupted_log(job):
    """So it does where it comes while the program's own log is told of the wait."""
    logger = logging.getLogger("holdfast")
    told = []

    def interrupt(record):
        told.append(record)
        signal.raise_signal(signal.SIGINT)
        return True

    logger.addFilter(interrupt)
    try:
        raises(KeyboardInterrupt, job.live_processes, "interrupted log", timeout=60)
    finally:
        logger.removeFilter(interrupt)
    assert len(told) == 1, told


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
    gathered(jobs)
    votes(jobs)
    scopes(jobs, now)
    blocks(jobs)
    endings()
    filtered()
    over()
    regrouped(jobs)
    print("votes and blocks", flush=True)
    errors(jobs)
    interrupted(jobs[0])
    interrupted_join()
    interrupted_log(jobs[0])
    forked(jobs)
    print("errors", flush=True)

    fence = jobs[0].fence()
    assert fence[:2] == (jobs[0].incarnation, jobs[0]._generation) and jobs[0].valid_for > 0
    assert jobs[1].check(fence, timeout=60) is True and jobs[1].check(str(fence)) is True
    raises(holdfast.Refused, jobs[1].check, "not a token")
    checkpoint = os.path.join(tempfile.mkdtemp(), "checkpoint")
    for life, text in ((jobs[0], "first"), (jobs[2], "second")):
        with life.replacing(checkpoint) as written, open(written, "w") as file:
            file.write(text)
    with contextlib.suppress(ZeroDivisionError), jobs[0].replacing(checkpoint) as written:
        pathlib.Path(written).write_text("half")
        raise ZeroDivisionError
    assert pathlib.Path(checkpoint).read_text() == "second"
    kinds = [event.kind for event in jobs[0].events() if event.kind != "round_failed"][-7:]
    assert kinds == ["registered"] * 4 + ["advanced"], kinds

    jobs[3].leave()
    jobs[3].leave()
    assert not raises(holdfast.HoldfastError, jobs[3].advance).retryable
    now = together(jobs[:3], lambda job: job.advance(timeout=60))[0]
    assert now.processes == (0, 1, 2) and [(who.process, who.why) for who in now.dropped] == [(3, "left")], now

    again = holdfast.Job.join("verbs", process=2, world=WORLD, host="there", takeover=True, ttl=TTL)
    assert again.incarnation > jobs[2].incarnation, (again, jobs)
    # A life that is over replaces nothing, and leaves nothing behind.
    old = f"{jobs[2].name}:{jobs[2].run}:2:{jobs[2].incarnation}:1"
    assert "void" in str(raises(holdfast.Fenced, jobs[0].check, old))

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
