"""A training function that is begun again in all ranks when one fails. See :func:`holdfast.restart`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional, Union, overload

from . import _arguments as arguments
from ._attempt import Attempt, Running, end_if_silent, prepare
from ._errors import NoMoreRestarts, Over, Refused, Revoked, RoundTimeout
from ._job import Job
from ._policy import Assignment, Policy
from ._subscription import LOOK_EVERY
from ._types import Event, Iteration

logger = logging.getLogger("holdfast")

SPEC = b"holdfast.restart"
"""What all members of a held iteration agree on."""

NEVER = float(arguments.SECONDS_MAX)
"""Seconds for which a rank waits for the others."""

Hook = Callable[[Attempt], object]


@dataclass(frozen=True)
class RestartPolicy:
    """What a function under :func:`holdfast.restart` does around its attempts. Each hook is a function of the
    :class:`Attempt`, and runs in every process. All ranks give the same numbers."""

    initialize: Optional[Hook] = None
    """Before the function, in every attempt. Its exception is as one of the function."""
    abort: Optional[Hook] = None
    """In a thread, once the attempt is over: makes what the function waits for fail. Collectives of PyTorch are aborted
    without it, those of gloo excepted, which fail as other ranks stop."""
    finalize: Optional[Hook] = None
    """After the function has ended, and before the next attempt. If it raises, this process leaves with that error."""
    health_check: Optional[Hook] = None
    """After ``finalize``: if it raises, this process leaves with that error, and the others go on without it."""
    completion: Optional[Hook] = None
    """Once, when all ranks have returned."""
    rank_assignment: Union[Assignment, Sequence[Mapping[str, Any]], None] = None
    """Who gets which rank; goes over the ``assignment`` of the job's :class:`Policy`. The store assigns, so that all get
    the same."""
    restarts_max: Optional[int] = 1000
    """It is given up after so many further attempts of the run, whatever ended them; none = never."""
    stop_max: float = 60.0
    """Seconds from the end of an attempt in which a process must be ready for the next one: ``abort``, the function's own
    end, ``finalize`` and ``health_check``. One that is not is ended; the others go on without it."""
    admit_after: Optional[float] = 10.0
    """Seconds after which a process that comes late, or back, ends the attempt that runs without it, so that the next one
    has it; none = it waits until that ends by itself."""

    def __post_init__(self) -> None:
        for hook in ("initialize", "abort", "finalize", "health_check", "completion"):
            arguments.callable_or_none(hook, getattr(self, hook))
        if self.rank_assignment is not None:
            arguments.steps("rank_assignment", self.rank_assignment)
        if self.restarts_max is not None:
            arguments.whole("restarts_max", self.restarts_max, also=", or None")
        if arguments.seconds("stop_max", self.stop_max) < 1:
            arguments.refuse("stop_max", self.stop_max, "1 second at least")
        arguments.seconds_or_never("admit_after", self.admit_after)


@overload
def restart(policy: Callable[..., Any], /) -> Callable[..., Any]: ...
@overload
def restart(policy: RestartPolicy = ..., /, **joining: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def restart(policy: Union[RestartPolicy, Callable[..., Any]] = RestartPolicy(), /, **joining: Any) -> Callable[..., Any]:
    """A training function that is begun again, in the same processes, when a rank fails or is lost. ::

        @holdfast.restart(holdfast.RestartPolicy(health_check=look_at_the_gpu), members_min=2)
        def train(attempt, path):
            state = load_checkpoint(path)
            while state.step < STEPS:
                train_a_step(state, attempt.rank, attempt.world_size)
            return state

        state = train("checkpoint.pt")

    The first argument of the function is the :class:`Attempt`, an iteration of the job: its number is unique in the life
    of the job, so that a process that was killed and is started again is in the next one, with that number, too.

    An attempt is over, for all ranks, when one dies, when the function raises an ``Exception`` in one, when
    :meth:`Attempt.fail` is called, when somebody waits to be taken in (``admit_after``), or by ``holdfast comm revoke``.
    Then ``abort`` runs in a thread, and :class:`holdfast.AttemptEnded`, which is no ``Exception``, is raised in the
    function, wherever the main thread runs Python, sleeps or waits in a call of this package. All get the next one.
    PyTorch's process groups are destroyed in between: make them in the function, with
    ``store=holdfast.torch.group_store(attempt.iteration)``.

    A rank that has returned waits for the others, and begins again if one fails before that. When all have, each
    returns what its function returned. A process without a rank waits, and returns None, as does one that comes when the
    others have completed.

    ``joining``: arguments of :meth:`Job.join`, for a job that is joined at the call and left at its end; or ``job=``, a
    :class:`Job` that was joined before. ``soft_timeout`` ends the attempt of a silent rank, ``hard_timeout`` and
    ``main_thread_timeout`` the process, see :class:`Policy`.

    The call raises :class:`holdfast.NoMoreRestarts` when it is given up; what ``finalize`` and ``health_check`` raise;
    what the function raises that is no ``Exception``, as ``KeyboardInterrupt``, which ends the attempt for the others;
    and what :meth:`Job.advance` raises. One call at a time, in the main thread.
    """
    if callable(policy) and not isinstance(policy, type):
        return restart(**joining)(policy)
    if not isinstance(policy, RestartPolicy):
        arguments.wrong_type("policy", policy, "a holdfast.RestartPolicy, as RestartPolicy(restarts_max=10)")
    for name in joining:
        if name in NAMES:
            raise TypeError(f"restart() has no argument {name!r}: it is one of RestartPolicy({name}=...)")
    chosen: RestartPolicy = policy

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_function(function)

        @functools.wraps(function)
        def restarted(*args: Any, **kwargs: Any) -> Any:
            with _alone(function.__qualname__), _joined(chosen, joining) as job:
                call = _Call(chosen, job, function.__qualname__)
                return call.run(lambda attempt: function(attempt, *args, **kwargs))

        return restarted

    return decorate


NAMES = {one.name for one in fields(RestartPolicy)}

_calls: dict[tuple[str, Optional[str]], int] = {}
"""How many calls under :func:`restart` have ended in a run, for all its processes: they all make the same ones."""

_running: list[str] = []
"""The function that is called under :func:`restart`, if one is."""


class _Call:
    """One call of a function under :func:`restart`, until all ranks have completed it."""

    def __init__(self, policy: RestartPolicy, job: Job, name: str) -> None:
        self._policy, self._job, self._name = policy, job, name
        self._holds = job._native.holds()
        self._run = job.name, job.run
        number = _calls.get(self._run, 0) + 1
        self._first, self._completed = (f"holdfast.restart/{number}/{key}" for key in ("first", "completed"))
        self._cause: Optional[str] = None
        self._error: Optional[BaseException] = None
        self._pings = self._is_completed = False
        self._evicts = job._evict_after is not None
        self._patience = NEVER if job._evict_after is None else job._evict_after

    def run(self, function: Callable[[Attempt], Any]) -> Any:
        ended = False
        try:
            value, ended = self._until_completed(function), True
            return value
        except NoMoreRestarts:
            ended = True
            raise
        finally:
            if ended or self._is_completed:
                _calls[self._run] = _calls.get(self._run, 0) + 1

    def _until_completed(self, function: Callable[[Attempt], Any]) -> Any:
        attempt = self._begin()
        while attempt is not None:
            completed, value = self._attempt(attempt, function)
            if completed:
                return value
            attempt = self._begin()
        which = (self._name, self._job.run, self._job.name, self._job.process)
        logger.warning("%s was completed in run %s of job %s without process %d; to run it again, open a new run", *which)
        return None

    def _attempt(self, attempt: Attempt, function: Callable[[Attempt], Any]) -> tuple[bool, Any]:
        """One attempt: whether it was completed, and the value. If this raises, nothing of it is held afterwards."""
        running, policy = attempt._running, self._policy

        def whole() -> Any:
            if policy.initialize is not None:
                policy.initialize(attempt)
            return function(attempt)

        try:
            completed, value = running.run(attempt, whole)
            if completed:
                self._is_completed = True
                # Before it lets go: a rank that sees that it has, sees this, too.
                self._job.kv.put(self._completed, str(attempt.iteration))
                running.let_go()
                if policy.completion is not None:
                    policy.completion(attempt)
                return True, value
            for hook in (policy.finalize, policy.health_check):
                if hook is not None:
                    hook(attempt)
        except BaseException:
            running.let_go(stops=not self._is_completed)
            raise
        self._cause, self._error, self._pings = running.why, running.error, running.pings
        running.left()
        return False, None

    def _begin(self) -> Optional[Attempt]:
        """The next attempt in which this process has a rank; none if it is not needed any more."""
        patience = self._first_patience()
        while self._job.kv.get(self._completed) is None:
            if self._pings:
                self._job.ping()
            how = (SPEC, self._policy.stop_max, 0.0, patience)
            try:
                found, formed = self._holds.advance(how, (0, b""), self._evicts, None)
            except (RoundTimeout, Revoked):
                continue
            except Over:
                return None
            now, patience = self._job._begun(found), self._patience
            if now.stop is not None:
                raise self._given_up(str(now.stop))
            if formed is None or formed["rank"] is None:
                self._pass_over(now)
                continue
            running = Running(self._job, formed["generation"], self._policy.stop_max, self._policy.abort)
            try:
                attempt = self._of(now, running)
            except BaseException:
                running.let_go()
                raise
            if attempt is not None:
                return attempt
        return None

    def _first_patience(self) -> float:
        """Seconds of waiting after which the attempt that runs is ended. Who comes late is in no iteration, though there
        is one."""
        latest, is_member = self._job.iteration()
        comes_late = latest > 0 and not is_member
        if comes_late and self._policy.admit_after is not None:
            return max(self._policy.admit_after, 0.001)
        return self._patience

    def _of(self, now: Iteration, running: Running) -> Optional[Attempt]:
        """An iteration in which this process has a rank; none if the others had completed before it."""
        if self._job.kv.get(self._completed) is not None:
            running.let_go()
            return None
        number = str(now.iteration)
        restarts = now.iteration - int(self._job.kv.cas(self._first, None, number).value or number)
        most = self._policy.restarts_max
        if most is not None and restarts > most:
            raise self._given_up(f"restarts of the run: {restarts}, and restarts_max is {most}")
        known = {one.name: getattr(now, one.name) for one in fields(Iteration)}
        if restarts:
            begins = (self._name, now.iteration, now.rank, now.world_size)
            logger.info("%s begins again in iteration %d, with rank %s of %d", *begins)
        return Attempt(**known, restarts=restarts, cause=self._cause, job=self._job, _running=running)

    def _given_up(self, why: str) -> NoMoreRestarts:
        latest = f"; the latest attempt ended: {self._cause}" if self._cause else ""
        error = NoMoreRestarts(f"{self._name} is not begun again: {why}{latest}", "conflict", False, "applied")
        error.__cause__ = self._error
        return error

    def _pass_over(self, now: Iteration) -> None:
        """Waits for the end of an attempt in which this process has no rank. In an advance it would end it."""
        over = threading.Event()

        def look(event: Event) -> None:
            ends = event.kind in ("revoked", "drained") and event.details.get("generation") == now.generation
            if ends or event.kind == "missed":
                over.set()

        logger.info("process %d has no rank in iteration %d, and waits for the next one", self._job.process, now.iteration)
        with self._job.on_change(look, after=now.witness) as subscription:
            while not over.wait(LOOK_EVERY) and not subscription.ended:
                if self._pings:
                    self._job.ping()


@contextlib.contextmanager
def _joined(policy: RestartPolicy, joining: Mapping[str, Any]) -> Iterator[Job]:
    """The job of a call: given, or joined for it."""
    job = joining.get("job")
    if isinstance(job, Job):
        if len(joining) > 1 or policy.rank_assignment is not None:
            given = sorted({*joining, *(["rank_assignment"] if policy.rank_assignment is not None else [])} - {"job"})
            text = f"{', '.join(given)} cannot be given here, since job is a Job that was joined before; see Job.join"
            raise Refused(text, "invalid_request", False, "none")
        yield job
        return
    numbers = dict(joining)
    if policy.rank_assignment is not None:
        numbers["assignment"] = policy.rank_assignment
    given = numbers.get("policy")
    hook = numbers.get("on_silence", given.on_silence if isinstance(given, Policy) else None)
    arguments.callable_or_none("on_silence", hook)

    def on_silence(silent: float, ends_in: Optional[float]) -> None:
        try:
            if hook is not None:
                hook(silent, ends_in)
        finally:
            end_if_silent(silent)

    numbers["on_silence"] = on_silence
    with Job.join(**numbers) as joined:
        yield joined


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """One call at a time, in the thread in which it can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        where = threading.current_thread().name
        text = f"{name} is called in the thread {where!r}; call it in the main thread, which alone can be interrupted"
        raise Refused(text, "invalid_request", False, "none")
    if _running:
        text = f"{name} is called while {_running[-1]} runs; one function under holdfast.restart runs at a time"
        raise Refused(text, "invalid_request", False, "none")
    prepare()
    _running.append(name)
    try:
        yield
    finally:
        _running.remove(name)


def _check_function(function: Any) -> None:
    """Refuses what cannot be begun again by a call."""
    wanted = "a function whose first argument is the Attempt, as in def train(attempt, ...)"
    if not callable(function):
        arguments.wrong_type("function", function, wanted)
    for test, what in (
        (inspect.iscoroutinefunction, "a coroutine: call asyncio.run in a function"),
        (inspect.isgeneratorfunction, "a generator: go through it in a function"),
        (inspect.isasyncgenfunction, "an asynchronous generator: go through it in a function"),
    ):
        if test(function):
            raise Refused(f"{function.__qualname__} is {what}, and decorate that", "invalid_request", False, "none")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # One of C, as a rule.
        return
    if not any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters):
        arguments.refuse("function", function, wanted)
