"""A rank whose function is begun again, and does what it is told; a line for each thing that happens.

    job_restart.py PROCESS WORLD [RESTARTS_MAX [ADMIT_AFTER]]
"""
import queue
import sys
import threading
import time

import holdfast

process, world = int(sys.argv[1]), int(sys.argv[2])
restarts_max = int(sys.argv[3]) if len(sys.argv) > 3 else None
admit_after = float(sys.argv[4]) if len(sys.argv) > 4 else 0.2
orders: "queue.Queue[str]" = queue.Queue()
sick = False


def say(*words):
    print(*words, flush=True)


def listen():
    for line in sys.stdin:
        orders.put(line.strip())


def health_check(attempt):
    if sick:
        raise OSError("the GPU is lost")


def swallow():
    """What no training should do: it is interrupted once more."""
    try:
        say("sleeps")
        time.sleep(3600)
    except BaseException as error:
        say("swallowed", type(error).__name__)


def obey(order, attempt):
    global sick
    if order == "sleep":
        try:
            say("sleeps")
            time.sleep(3600)
        except Exception:
            say("an Exception")
    elif order == "spin":
        say("spins")
        while True:
            pass
    elif order == "swallow":
        swallow()
    elif order == "write":
        with attempt.uninterrupted():
            say("writes")
            while attempt.over is None:
                time.sleep(0.01)
            say("has written")
    elif order == "raise":
        raise ValueError("as it was told")
    elif order == "sick":
        sick = True
        attempt.fail("a GPU is sick")
    elif order == "exit":
        sys.exit(3)


@holdfast.restart(
    holdfast.RestartPolicy(
        initialize=lambda attempt: say("initialize"),
        abort=lambda attempt: say("abort", threading.current_thread().name),
        finalize=lambda attempt: say("finalize"),
        health_check=health_check,
        completion=lambda attempt: say("completion"),
        restarts_max=restarts_max,
        admit_after=admit_after,
    ),
    process=process,
    world=world,
)
def train(attempt, word):
    assert attempt.cause is None or attempt.restarts
    say("attempt", attempt.iteration, attempt.rank, attempt.world_size, attempt.restarts, attempt.cause)
    while (order := orders.get()) != "return":
        obey(order, attempt)
    return f"{word} {attempt.iteration}"


threading.Thread(target=listen, daemon=True).start()
try:
    say("returned", train("value"))
except Exception as error:
    say("raised", type(error).__name__, error)
    raise
