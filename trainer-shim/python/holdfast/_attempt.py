"""One attempt at a function: what runs it, hears that it is over, and ends it here."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any, Optional

from . import _arguments as arguments
from . import _nccl as nccl
from ._ending import in_words
from ._errors import AttemptEnded, HoldfastError, Refused, Revoked
from ._job import Job
from ._types import Iteration

logger = logging.getLogger("holdfast")

HEAR_EVERY = 1.0
"""Seconds after which the thread that waits for a revocation asks again."""

INTERRUPT_EVERY = 1.0
"""Seconds after which a function that has swallowed its interruption is interrupted again."""

EXPLAINED_WITHIN = 0.5
"""Seconds in which an exception can turn out to come from the end of another process, before it is told as the
reason."""

REVOKED_WITHIN = 5.0
"""Seconds in which this process hears of a revocation that the store knows of."""

STOP_SHARE = 0.9
"""Of ``stop_max``: a process that has not stopped by then ends itself. At the whole of it, it is declared dead."""

LATE = ("the next generation's deadline passed", "a process that came late, or back, is taken in")
"""Why an attempt ended, as the store says it, and in the words of this package."""

COMPLETED = "holdfast.restart.completed"
"""The vote in which ranks that have returned wait for the others."""


@dataclass(frozen=True)
class Attempt(Iteration):
    """One attempt at a function under :func:`holdfast.restart`: an iteration of the job, with its number, this
    process's rank in it, and who else is there."""

    restarts: int = 0
    """How many attempts of the run came before it, in all incarnations of the processes."""
    cause: Optional[str] = None
    """Why the one before ended; none in the first that this process is in."""
    job: Job = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    """For votes, keys and locks in the function. Rounds of its ranks take ``among=attempt``."""
    _running: Running = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    @property
    def over(self) -> Optional[str]:
        """Why this attempt must not go on; none = it may. Asks nobody."""
        return self._running.why

    def fail(self, reason: str) -> None:
        """Ends this attempt for all: each gets the next one, the caller, too."""
        self._running.fail(arguments.text("reason", reason))

    def ping(self) -> None:
        """As :meth:`Job.ping`: from the first one on this process is silent since the latest. After ``soft_timeout``
        its attempt ends for all; after ``hard_timeout`` the agent ends the process."""
        self._running.pings = True
        self.job.ping()

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """A block that ``abort`` waits for, and in which the function is not interrupted, as the writing of a
        checkpoint. The time of ``stop_max`` goes on. Raises :class:`holdfast.AttemptEnded` at its beginning and at its
        end if the attempt is over."""
        with self._running.shield:
            self._running.check()
            self._running.shielded += 1
            try:
                yield
            finally:
                self._running.shielded -= 1
        self._running.check()


class Running:
    """An attempt in this process. Its generation is held from the beginning, until :meth:`let_go` or the next arrival."""

    def __init__(self, job: Job, generation: int, stop_max: float, abort: Optional[Callable[[Attempt], object]]) -> None:
        self.job, self.generation, self.pings = job, generation, False
        self.why: Optional[str] = None
        self.error: Optional[BaseException] = None
        self.shield, self.shielded = threading.RLock(), 0
        self._holds, self._abort = job._native.holds(), abort
        self._aborted, self._ended, self._left = threading.Event(), threading.Event(), threading.Event()
        self._voted, self._returned = threading.Event(), False
        self._limit = threading.Timer(STOP_SHARE * stop_max, self._end_process)
        self._limit.daemon = True
        self._stop_max = stop_max

    def run(self, attempt: Attempt, function: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether all ranks have returned, and what the function returned here. What it raises and is no ``Exception``
        goes on to the caller."""
        threading.Thread(target=self._watch, args=(attempt,), name="holdfast-restart", daemon=True).start()
        _interruptible.append(self)
        self.job._in_attempt = True
        try:
            value, self.error = _call(function)
            self._returned = self.error is None
            self._ended.set()
        finally:
            self.job._in_attempt = False
            _interruptible.remove(self)
        if self.error is None and self._all_returned(attempt):
            return True, value
        self._stop()
        return False, None

    def fail(self, reason: str) -> None:
        """Ends the attempt, for all."""
        # Revoked: it is over already. What the store cannot be told now, the end of this process tells.
        with contextlib.suppress(HoldfastError):
            self._holds.revoke(self.generation, reason, REVOKED_WITHIN)

    def check(self) -> None:
        """Raises if the attempt is over."""
        if self.why is not None and not _cleans_up():
            raise AttemptEnded(self.why)

    def interrupt(self, frame: Optional[FrameType]) -> None:
        """Raises in the function if it is over, and nowhere else. ``frame``: what the main thread runs."""
        if self.why is None or self.shielded or frame is None or frame.f_code is _call.__code__ or _cleans_up():
            return
        while frame is not None and frame.f_code is not _call.__code__:
            frame = frame.f_back
        if frame is not None:
            raise AttemptEnded(self.why)

    def left(self) -> None:
        """Nothing of it is left here: what follows is no part of ``stop_max``."""
        self._ended.set()
        self._left.set()
        self._limit.cancel()

    def let_go(self, stops: bool = False) -> None:
        """Lets go of the generation, which ends the attempt for those that have not returned. ``stops``: something of it
        may run yet."""
        if stops:
            end_process_groups()
        self.left()
        with contextlib.suppress(HoldfastError):  # If it cannot be said now, the end of this incarnation says it.
            self._holds.release(self.generation, REVOKED_WITHIN)

    def _all_returned(self, attempt: Attempt) -> bool:
        try:
            if self.job.vote(COMPLETED, True, among=attempt):
                self.left()
                return True
        except Revoked:
            pass
        finally:
            self._voted.set()
        return False

    def _stop(self) -> None:
        """The function has ended here, and not everywhere by returning. The attempt ends for all, and then nothing of it
        is left in this process."""
        error = self.error
        leaves = error is not None and not isinstance(error, (Exception, AttemptEnded))
        if self.why is None and self._holds.revoked(self.generation, 0.0 if leaves else EXPLAINED_WITHIN) is None:
            self.fail("it was not completed by all" if error is None else in_words(error))
        self._aborted.wait(REVOKED_WITHIN + self._stop_max)
        if not leaves:
            _clear(error)
        end_process_groups()
        gc.collect()
        if error is not None and leaves:
            raise error

    def _watch(self, attempt: Attempt) -> None:
        """Waits for the revocation; then aborts what runs, and interrupts the function until it ends."""
        why, failed = None, None
        while why is None and not self._left.is_set():
            why = self._heard(HEAR_EVERY if failed is None else REVOKED_WITHIN)
            if why is None and failed is not None:
                self.fail(failed)
            failed = failure_of_process_groups()
        if self._returned:
            # If all have, those that let go of it have ended nothing.
            self._voted.wait()
        if self._left.is_set():
            return
        why = LATE[1] if why == LATE[0] else why
        self.why = why
        # Before anything that can wait for the main thread, as a log can.
        self._limit.start()
        logger.warning("iteration %d is over: %s", attempt.iteration, why)
        with self.shield:
            self._abort_all(attempt)
        self._aborted.set()
        while not self._ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, _signal())
            self._ended.wait(INTERRUPT_EVERY)

    def _heard(self, within: float) -> Optional[str]:
        try:
            return self._holds.revoked(self.generation, within)
        except Exception as error:  # This incarnation has ended, or the program is ending.
            return str(error)

    def _abort_all(self, attempt: Attempt) -> None:
        for abort in (self._abort, lambda _: abort_process_groups()):
            try:
                if abort is not None:
                    abort(attempt)
            except BaseException:
                logger.exception("abort failed; the function is interrupted all the same")

    def _end_process(self) -> None:
        # Even if the log handler hangs.
        faulthandler.dump_traceback_later(1, exit=True, file=sys.__stderr__ or os.open(os.devnull, os.O_WRONLY))
        logger.critical(
            "process %d has not stopped in %g s since its attempt ended (%s): it ends itself; its threads are in",
            self.job.process, STOP_SHARE * self._stop_max, self.why,
        )
        for stream in (sys.stderr, sys.__stderr__):
            with contextlib.suppress(Exception):  # A stream can be anything, or nothing.
                faulthandler.dump_traceback(stream)
                break
        os._exit(1)


def _cleans_up() -> bool:
    """Whether what runs is a ``finally`` or an ``except`` on the way of an interruption."""
    handled = sys.exc_info()[1]
    while handled is not None and not isinstance(handled, AttemptEnded):
        handled = handled.__context__
    return handled is not None


def _clear(error: Optional[BaseException]) -> None:
    """The frames of an exception hold what the function made: process groups, memory of a device."""
    seen, left = set(), [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            left += [one.__cause__, one.__context__]


_interruptible: list[Running] = []
"""The attempt whose function the main thread runs, if it runs one."""


def end_if_silent(silent: float) -> None:
    """The attempt whose function runs ends, for all."""
    for running in list(_interruptible):
        running.fail(f"silent for {silent:.0f} s")


def _call(function: Callable[[], Any]) -> tuple[Any, Optional[BaseException]]:
    """What a function returns or raises. Only in what it calls can an attempt be interrupted."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


@lru_cache(maxsize=None)
def _signal() -> int:
    """A signal that nobody else handles, by which the main thread is interrupted. Unlike an asynchronous exception of the
    interpreter, it ends ``time.sleep`` and waiting for a lock. Installed for good: outside of an attempt it does nothing.
    First called in the main thread."""

    def interrupted(number: int, frame: Optional[FrameType]) -> None:
        if _interruptible:
            _interruptible[-1].interrupt(frame)

    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupted)
            return number
    text = "all real-time signals have handlers: one is needed to interrupt a function whose attempt is over"
    raise Refused(text, "invalid_request", False, "none")


def prepare() -> None:
    """Finds the signal, and lets this process outlive process groups that are aborted. For the main thread."""
    _signal()
    nccl.survive()


def _distributed() -> Any:
    """PyTorch's module, if this program uses it and has process groups."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


def abort_process_groups() -> None:
    """Makes collectives that run fail. Those of gloo cannot be: they fail as other members close their sockets."""
    dist = _distributed()
    if dist is not None and dist.get_backend() != "gloo":
        nccl.abort(list(dist.distributed_c10d._world.pg_map))
        dist.distributed_c10d._abort_process_group()


def failure_of_process_groups() -> Optional[str]:
    """What has failed in a process group without an exception."""
    with contextlib.suppress(Exception):  # They are being destroyed.
        dist = _distributed()
        if dist is not None and dist.get_backend() != "gloo":
            return nccl.failure()
    return None


def end_process_groups() -> None:
    """Destroys all process groups, which closes their sockets, so that the next attempt makes its own."""
    dist = _distributed()
    if dist is not None:
        try:
            dist.destroy_process_group()
        except Exception:
            logger.exception("the process groups of the attempt could not be destroyed")
