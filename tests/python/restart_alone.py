"""Functions under holdfast.restart in a job of one process: what is refused, what is answered, what goes on.

    restart_alone.py [stuck]
"""
import asyncio
import functools
import signal
import subprocess
import sys
import threading
import time

import holdfast

alone = functools.partial(holdfast.restart, process=0, world=1, ttl=20)


def raises(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"{call} raised no {kind.__name__}")


async def coroutine(attempt):
    return attempt


def generator(attempt):
    yield attempt


def decorated():
    """What cannot be begun again by a call is refused where it is decorated."""
    raises(holdfast.Refused, "a coroutine: call asyncio.run in a function", holdfast.restart, coroutine)
    raises(holdfast.Refused, "a generator", holdfast.restart(), generator)
    raises(holdfast.Refused, "first argument is the Attempt", holdfast.restart(), lambda: None)
    raises(TypeError, "it has to be a function", holdfast.restart(), 7)
    raises(TypeError, "it has to be a holdfast.RestartPolicy", holdfast.restart, holdfast.Policy())
    raises(TypeError, "it has to be a holdfast.RestartPolicy", holdfast.restart, holdfast.RestartPolicy)
    raises(TypeError, "RestartPolicy(abort=...)", holdfast.restart, abort=print)
    raises(TypeError, "RestartPolicy(restarts_max=...)", holdfast.restart, restarts_max=7)
    raises(TypeError, "did you mean 'members_min'", holdfast.restart(member_min=1)(lambda attempt: None))


def called():
    """One call at a time, in the main thread."""
    other = alone(job="called")(lambda attempt: None)

    @alone(job="called")
    def train(attempt, word, *, other_word):
        raises(holdfast.Refused, "while called.<locals>.train runs", other)
        raises(holdfast.Refused, "begins the iterations of this job", attempt.job.advance)
        return word, other_word, attempt.rank, attempt.world_size, attempt.restarts, attempt.cause, attempt.over

    assert train("one", other_word="two") == ("one", "two", 0, 1, 0, None, None)
    assert asyncio.run(asyncio.sleep(0)) is None
    refused = []
    thread = threading.Thread(target=lambda: refused.append(raises(holdfast.Refused, "in the main thread", other)))
    thread.start()
    thread.join()
    assert refused
    # Once more in the same run: other attempts, whose restarts are counted anew.
    assert train("three", other_word="four")[4] == 0


def given():
    """A job that was joined before goes on after the call."""
    with holdfast.Job.join("given", process=0, world=1, ttl=20) as job:
        raises(holdfast.Refused, "world cannot be given here", holdfast.restart(job=job, world=1)(print))
        policy = holdfast.RestartPolicy(rank_assignment=holdfast.Assignment().fill_gaps())
        raises(holdfast.Refused, "rank_assignment cannot be given here", holdfast.restart(policy, job=job)(print))
        numbers = [holdfast.restart(job=job)(lambda attempt: attempt.iteration)() for _ in range(2)]
        assert numbers == [1, 2], numbers
        assert job.vote("on", True)


def fails():
    """Until it is given up."""
    seen = []

    @alone(holdfast.RestartPolicy(restarts_max=2), job="fails")
    def train(attempt):
        seen.append((attempt.iteration, attempt.restarts, attempt.cause))
        raise OSError(f"disk full in {attempt.iteration}")

    error = raises(holdfast.NoMoreRestarts, "restarts_max is 2", train)
    assert "disk full in 3" in str(error) and isinstance(error.__cause__, OSError), error
    assert [one[:2] for one in seen] == [(1, 0), (2, 1), (3, 2)], seen
    assert "OSError: disk full in 1" in seen[1][2], seen


def passes():
    """What is no Exception goes on, at once."""
    def interrupted(attempt):
        raise KeyboardInterrupt("by hand")

    raises(KeyboardInterrupt, "by hand", alone(job="passes")(interrupted))


def in_order():
    """The hooks of two attempts, the first of which ends by its own word, in a block that is not interrupted."""
    seen = []

    def said(word):
        return lambda attempt: seen.append((word, attempt.iteration))

    hooks = {name: said(name) for name in ("initialize", "abort", "finalize", "health_check", "completion")}

    @alone(holdfast.RestartPolicy(**hooks), job="in-order")
    def train(attempt):
        if attempt.restarts:
            assert "enough" in attempt.cause
            return "done"
        with attempt.uninterrupted():
            attempt.fail("enough")
            while attempt.over is None:
                time.sleep(0.01)
            seen.append(("written", attempt.iteration))
        raise AssertionError("the attempt is over")

    assert train() == "done"
    first = [(name, 1) for name in ("initialize", "written", "abort", "finalize", "health_check")]
    assert seen == [*first, ("initialize", 2), ("completion", 2)], seen


def stuck():
    """A function that nothing can interrupt is ended with its process, which says where it was."""
    child = subprocess.run([sys.executable, __file__, "stuck"], stderr=subprocess.PIPE, text=True, timeout=100)
    assert child.returncode == 1, child
    for words in ("has not stopped in 0.9 s since its attempt ended", "it hangs", "in sleeps_for_ever"):
        assert words in child.stderr, child.stderr


@alone(holdfast.RestartPolicy(stop_max=1), job="stuck")
def sleeps_for_ever(attempt):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    attempt.fail("it hangs")
    time.sleep(3600)


if sys.argv[1:] == ["stuck"]:
    sleeps_for_ever()
for part in (decorated, called, given, fails, passes, in_order, stuck):
    part()
    print(part.__name__, flush=True)
print("all good", flush=True)
