"""A process's place in a job, and what it can say there."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Optional, Union

from . import _arguments as arguments
from . import _holdfast
from . import _joining as joining
from ._arguments import U64_MAX
from ._ending import ending, in_words
from ._environment import warn_once
from ._errors import BlockFailed, HoldfastError, Over, Refused
from ._keys import Keys
from ._policy import Policy
from ._subscription import Subscription, event
from ._types import Event, Fence, Gathered, Iteration, Live, Member, Stop, Verdict, members, remarks

TTL_DEFAULT = 5.0
PATIENCE_DEFAULT = 60.0
RULES = ("and", "unanimous", "plurality")
UNHEARD = ("timeout", "regroup", "conflict", "generation_unknown", "unavailable", "not_leader", "overloaded")
"""Codes of an error at the end of an atomic block after which it counts as failed."""

Among = Union[Literal["all"], Iteration, Live, int, Sequence[int]]
"""Whose round it is: of all active processes, of the members of a closed round (of an iteration: those that
have a rank), which is named by its answer or its generation, or of exactly these processes."""

_joined: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """One incarnation of one process in a job. Made by :meth:`join`.

    Verbs may be called from any thread. All of them release the GIL while they wait, and Ctrl-C ends
    them. Without a ``timeout`` they wait as long as it takes, also while the store elects a new
    leader; with one, in seconds, they raise :class:`~holdfast.RoundTimeout`, which names who was
    missing. A call that timed out is withdrawn: calling again is a new call.

    A round waits for *every* live process of its scope: ``among``, all active processes if nothing else is
    said. So let all processes of a job call the same verbs in the same order, and call
    :meth:`advance` again and again: a process that comes late gets in there. A round over all active
    processes that cannot close without a process that waits there raises :class:`~holdfast.Regroup`:
    call :meth:`advance`.
    """

    def __init__(self, process: _holdfast.Process, evict_after: Optional[float]) -> None:
        """Use :meth:`join`."""
        self._native = process
        self._evict_after = evict_after
        self._generation = 0
        self._iteration: Optional[Iteration] = None
        self._kv: Optional[Keys] = None
        self._ready = False
        self.process: int = -1
        """This process's number: its rank at the launch, as a rule; -1 until it is :meth:`ready`."""
        self.incarnation: int = 0
        """This incarnation of it: never used again; 0 until it is :meth:`ready`."""
        self.name, self.run = process.scope
        self._in_attempt = False
        self._groups: list[Any] = []
        """What is to be closed before this incarnation is left: it lets go of what it holds."""
        _joined.add(self)

    @classmethod
    def join(
        cls,
        job: Optional[str] = None,
        run: Optional[str] = None,
        process: Union[int, Literal["any"], None] = None,
        world: Optional[int] = None,
        *,
        members_min: Optional[int] = None,
        last_call: Optional[float] = None,
        policy: Policy = Policy(),
        role: str = "active",
        labels: Optional[Mapping[str, str]] = None,
        ready: bool = True,
        takeover: bool = False,
        open_run: bool = False,
        store: Optional[str] = None,
        token_file: Optional[Union[str, os.PathLike[str]]] = None,
        tls_ca: Optional[Union[str, os.PathLike[str]]] = None,
        tls_cert: Optional[Union[str, os.PathLike[str]]] = None,
        tls_key: Optional[Union[str, os.PathLike[str]]] = None,
        host: Optional[str] = None,
        ttl: float = TTL_DEFAULT,
        timeout: float = PATIENCE_DEFAULT,
        **numbers: Any,
    ) -> Job:
        """Joins a job with a new incarnation of this process.

        Under ``holdfast-agent run``, which says so in ``HOLDFAST_CONTROL``, the process is attached to
        the agent of its host unless ``store`` is given: if it dies, the others hear of it within
        milliseconds. Otherwise it takes a lease of its own, and they hear of it after ``ttl``.

        Where these are not given: ``store`` (``host:port`` of nodes, separated by commas) is
        ``HOLDFAST_STORE``; ``job`` is ``HOLDFAST_JOB``, else the agent's, else ``default``; ``run`` is ``HOLDFAST_RUN``,
        else the job's open run, which is opened if there is none; ``token_file`` is
        ``HOLDFAST_TOKEN_FILE``; ``tls_ca``, ``tls_cert`` and ``tls_key`` (for a store with TLS: the authority
        of its nodes' certificates, and a certificate to show) are ``HOLDFAST_TLS_CA``, ``HOLDFAST_TLS_CERT``
        and ``HOLDFAST_TLS_KEY``; ``process`` is ``RANK``, else the next number that is free, which ``"any"``
        asks for in any case; ``world`` is ``WORLD_SIZE``.

        ``policy``: what the job is to do when processes come and go, see :class:`~holdfast.Policy`.
        ``world``, ``members_min``, ``last_call``, and any other of its numbers by its name, go over it.

        ``role``: ``"active"``, or ``"standby"``, a spare that waits in :meth:`advance` until it is
        needed. ``labels``: what this process says of itself, for the rank assignment and for people.

        ``ready``: with False the store or the agent is found, and nothing else: no round waits for this
        process, and it can call nothing, until it says :meth:`ready`. For a program that loads for minutes.

        ``ttl``: seconds without a heartbeat after which this process counts as dead, for a lease of
        its own; that of an agent is the agent's (``--lease-ttl``), as are ``host`` and the token. Until
        then a killed process of this number is still alive: joining waits for its end, at most
        ``timeout`` seconds, unless ``takeover`` says that it is to be replaced at once. ``open_run``: ``run`` is
        opened if it is not the job's open one, which ends that.

        The agent watches the process; without an agent nobody does. A process that has called :meth:`ping`
        or :meth:`progress` is silent since the last of these, if it does not wait in a call; others while the
        library sends no heartbeat. What then happens the policy says; the defaults are those of NVRx.
        """
        given = {"world": world, "members_min": members_min, "last_call": last_call}
        numbers.update({name: number for name, number in given.items() if number is not None})
        numbers = arguments.policy("policy", policy, numbers)
        warn_once()
        wanted = joining.wanted(
            numbers,
            job=job,
            run=run,
            process=process,
            role=role,
            labels=labels,
            takeover=takeover,
            open_run=open_run,
            store=store,
            token_file=token_file,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            host=host,
            ttl=ttl,
            timeout=timeout,
        )
        evict_after = arguments.seconds_or_never("evict_after", numbers["evict_after"])
        is_ready, begun = arguments.flag("ready", ready), time.monotonic()
        joined = cls(_holdfast.Process.join(wanted), evict_after)
        if is_ready:
            # What finding the store has taken is part of it.
            joined.ready(max(wanted["patience"] - (time.monotonic() - begun), 0.0))
        return joined

    def ready(self, timeout: float = PATIENCE_DEFAULT) -> None:
        """Registers this incarnation, after ``join(ready=False)``: from now on rounds wait for it. Twice is as good
        as once. ``timeout``: as of :meth:`join`."""
        timeout = arguments.seconds("timeout", timeout)
        if not self._ready:
            self._native.ready(timeout)
            self.process, self.incarnation = self._native.process, self._native.incarnation
            self._ready = True

    @property
    def kv(self) -> Keys:
        """The keys of this run."""
        if self._kv is None:
            self._kv = Keys(self._native.keys())
        return self._kv

    def on_change(self, callback: Callable[[Event], object], after: Optional[int] = None) -> Subscription:
        """Calls ``callback(event)`` for what happens in the job, as it happens: registrations, ends, promotions,
        iterations with other members, failed rounds, the end of a run. ::

            with job.on_change(print):
                train()

        In a thread of its own, one event after the other, each once, across failovers of the store; from
        now on, or behind the revision ``after``. If the store no longer keeps some of them, an event ``missed``
        says up to which revision: look at what matters, as :meth:`alive`. What the callback raises is logged, and it is called again
        for the next event; one that hangs holds up nobody but itself. Ends with :meth:`Subscription.close`, or
        with this incarnation.
        """
        if not callable(callback):
            arguments.wrong_type("callback", callback, "a function of an Event")
        if after is None:
            # Up to where there is anything: what comes behind it is news.
            _, after = self._native.events(U64_MAX, None)
        else:
            after = arguments.whole("after", after, U64_MAX)
        return Subscription(self._native.news(after), after, callback, str(self))

    def live_processes(self, name: str = "live", timeout: Optional[float] = None, *, among: Among = "all") -> Live:
        """Who is alive: returns when every live process of the scope has called with this name, and tells
        all of them the same."""
        name, whose = arguments.text("name", name), arguments.among("among", among)
        return self._live(self._native.live_processes(name, whose, arguments.seconds_or_never("timeout", timeout)))

    def advance(self, timeout: Optional[float] = None) -> Iteration:
        """The next iteration of the job, with this process in it.

        Returns when every live active process has called. A process that starts early or comes late is in
        the one that is open. ``rank`` is none for a process that has no place this time. A standby is
        told by :class:`~holdfast.Over` that it is not needed any more.
        """
        self._refuse_in_attempt()
        return self._begun(self._native.advance(self._evict_after, arguments.seconds_or_never("timeout", timeout)))

    def _refuse_in_attempt(self) -> None:
        if self._in_attempt:
            text = "holdfast.restart begins the iterations of this job: return, raise, or call attempt.fail for the next one"
            raise Refused(text, "conflict", False, "none")

    def _begun(self, found: dict[str, Any]) -> Iteration:
        """An iteration, as the native half says it."""
        for key in ("members", "promoted"):
            found[key] = members(found[key])
        found["ranks"], found["dropped"] = tuple(found["ranks"]), remarks(found["dropped"])
        found["stop"] = Stop(*found["stop"]) if found["stop"] else None
        self._generation = max(self._generation, found["generation"])
        self._iteration = Iteration(**found)
        return self._iteration

    def iterations(self, timeout: Optional[float] = None) -> Iterator[Iteration]:
        """The iterations of the job, one after the other, each begun by :meth:`advance`. ::

            for iteration in job.iterations():
                with iteration:
                    train(iteration.rank, iteration.world_size)
            print("nobody should go on:", job.stopped)

        When a member goes on to the next iteration, rounds of all in this one cannot close any more, and raise
        :class:`~holdfast.Regroup` in everybody. ``with iteration`` takes that: the block ends early, and the
        loop goes on with the next one. Without ``with`` it is an exception as any other.

        An iteration in which this process has no rank is passed over. The loop ends when nobody should go on,
        which :attr:`stopped` then tells, and for a standby that is not needed any more. Once this incarnation is over by a
        decision of the store it raises :class:`~holdfast.Fenced`. ``timeout``: as of :meth:`advance`, for each.
        """
        return self._iterations(arguments.seconds_or_never("timeout", timeout))

    def _iterations(self, timeout: Optional[float]) -> Iterator[Iteration]:
        while True:
            try:
                now = self.advance(timeout)
            except Over:
                return
            if now.stop is not None:
                return
            if now.rank is not None:
                yield now

    @property
    def stopped(self) -> Optional[Stop]:
        """Why nobody should go on, by the latest iteration that this process was told of; none = go on."""
        return None if self._iteration is None else self._iteration.stop

    def gather(
        self,
        value: bytes,
        name: str = "gather",
        *,
        among: Optional[Among] = None,
        timeout: Optional[float] = None,
    ) -> Gathered:
        """Everybody of the scope brings a value, and gets those of all.

        ``value``: bytes, at most 64 KiB. ``among``: as of :meth:`vote`, if nothing is given the ranked
        members of the latest iteration that this process was told of, before any iteration all.
        """
        name, value = arguments.text("name", name), _value(value)
        timeout = arguments.seconds_or_never("timeout", timeout)
        found, values = self._native.gather(name, value, self._ranked(among), timeout)
        live = self._live(found)
        return Gathered(live.generation, live.witness, live.members, tuple(values))

    def broadcast(
        self,
        value: Optional[bytes] = None,
        from_: int = 0,
        name: str = "broadcast",
        *,
        among: Optional[Among] = None,
        timeout: Optional[float] = None,
    ) -> bytes:
        """What the process ``from_`` brings, for everybody of the scope.

        ``from_`` is the number of a process, the same for all callers; the values of others are not
        looked at. Raises :class:`~holdfast.HoldfastError` in every process alike if that one was not
        there, since it has died, left or gone on. ``among``: as of :meth:`gather`.
        """
        name, from_ = arguments.text("name", name), arguments.whole("from_", from_)
        brought = _value(b"" if value is None or from_ != self.process else value)
        if from_ == self.process and value is None:
            arguments.wrong_type("value", value, "bytes in the process that it comes from")
        found = self.gather(brought, f"{name}:{from_}", among=among, timeout=timeout)
        if from_ not in found.processes:
            text = f"process {from_}, whose value everybody waits for, was not in the broadcast {name!r}"
            raise HoldfastError(text, "conflict", False, "applied")
        return found.of(from_)

    def vote(
        self,
        tag: str,
        value: Union[bool, str, bytes],
        rule: str = "and",
        *,
        among: Optional[Among] = None,
        priority: int = 0,
        timeout: Optional[float] = None,
    ) -> Verdict:
        """Votes with all of the scope; votes of other tags, or among others, go on beside it.

        ``among``: if nothing is given, the ranked members of the latest iteration that this process was
        told of, so that one that has died since then makes the vote fail, and a process without a rank
        is refused; before any iteration, all.

        ``rule``: ``"and"`` (``value`` is true or false; carried if all say true), ``"unanimous"`` (all
        say the same value), ``"plurality"`` (lowest ``priority`` wins, then most votes, then the least
        value; an empty value abstains).
        """
        tag, rule = arguments.text("tag", tag), arguments.choice("rule", rule, RULES)
        payload = _payload(value, rule, priority)
        timeout = arguments.seconds_or_never("timeout", timeout)
        found = self._native.vote(tag, rule, payload, self._ranked(among), timeout)
        found["against"] = remarks(found["against"])
        return Verdict(**found)

    def _ranked(self, among: Optional[Among]) -> Union[int, list[int], None]:
        """A scope, by default the ranked members of this process's iteration."""
        if among is None:
            among = "all" if self._iteration is None else self._iteration
        if isinstance(among, Iteration) and among.rank is None:
            text = (
                f"process {self.process} has no rank in iteration {among.iteration}, and `among` is the processes that "
                "have one; go on to advance, or give another scope, as among='all'"
            )
            raise Refused(text, "conflict", False, "none")
        return arguments.among("among", among)

    @contextmanager
    def atomic(self, name: str = "step", timeout: Optional[float] = None) -> Iterator[Live]:
        """A block of work that succeeds for everybody or for nobody. ::

            try:
                with job.atomic() as live:
                    ...
            except Exception:
                ...  # every process that was in the block comes here, or
            else:
                ...  # every one of them comes here

        Entering waits for all live active processes. At the end of the block, before any code behind it
        runs, each waits for all that entered with it. The block succeeded if every one of them, in the
        same incarnation, ended it without an exception; if not, :class:`~holdfast.BlockFailed` is raised, in
        every process alike: undo the block.

        An exception in the body goes on as it is, at once; the others hear of it with its type and the
        begin of its text, also if this process has left before they end the block.
        ``timeout`` is for entering and again for the end. One that runs out at the end raises
        :class:`~holdfast.BlockFailed`, and makes the block fail for the others.
        """
        name, timeout = arguments.text("name", name), arguments.seconds_or_never("timeout", timeout)
        live = self._live(self._native.enter(name, timeout))
        try:
            yield live
        except BaseException as error:
            with suppress(HoldfastError):  # Its end says it, too.
                self._native.fail(name, live.generation, in_words(error))
            raise
        try:
            found = self._native.exit(name, live.generation, timeout)
        except HoldfastError as error:
            if error.code not in UNHEARD:
                raise
            outcome = "unknown" if error.outcome == "unknown" else "applied"
            raise BlockFailed(name, (), live, str(error), outcome) from error
        if not found["succeeded"]:
            raise BlockFailed(name, remarks(found["against"]), live)

    def quorum(
        self, name: str, least: int, most: int, settle: float, timeout: Optional[float] = None, *, among: Among = "all"
    ) -> Live:
        """Meets the processes that are there: returns with ``most`` members, or ``settle`` seconds after the
        first ``least``. The others are left out, and stay alive."""
        numbers = (arguments.whole("least", least), arguments.whole("most", most))
        name, settle = arguments.text("name", name), arguments.seconds("settle", settle)
        timeout, whose = arguments.seconds_or_never("timeout", timeout), arguments.among("among", among)
        return self._live(self._native.quorum(name, numbers, settle, whose, timeout))

    def waiting(self, name: str, timeout: Optional[float] = None) -> tuple[Member, ...]:
        """Who waits in rounds of this name at this moment, among any processes. Does not wait."""
        name = arguments.text("name", name)
        found = self._native.waiting(name, arguments.seconds_or_never("timeout", timeout))
        return tuple(member for arrived in found for member in members(arrived))

    def alive(self, timeout: Optional[float] = None) -> tuple[Member, ...]:
        """The processes that the cluster counts as alive at this moment, standbys included. Does not wait, so
        two callers may get different answers: to act together, use :meth:`live_processes`."""
        found = self._native.processes(arguments.seconds_or_never("timeout", timeout))
        return tuple(Member(process, incarnation) for process, incarnation, _ in found)

    def iteration(self, timeout: Optional[float] = None) -> tuple[int, bool]:
        """The job's latest iteration, 0 before the first, and whether this process is in it. Waits
        for nobody."""
        return self._native.iteration(arguments.seconds_or_never("timeout", timeout))

    def events(self, after: int = 0, timeout: Optional[float] = None) -> list[Event]:
        """What happened in the job after a revision, oldest first. To go on, pass the revision of
        the last one."""
        after, timeout = arguments.whole("after", after, U64_MAX), arguments.seconds_or_never("timeout", timeout)
        found: list[Event] = []
        while True:
            page, upto = self._native.events(after, timeout)
            found += map(event, page)
            if not page or upto <= after:
                return found
            after = upto

    def fence(self, generation: Optional[int] = None) -> Fence:
        """Proof that this incarnation is alive now, to be checked by the guard of a resource: of one
        process, a larger fence makes all smaller ones void.

        ``generation``: in whose name; the latest that this process was told of, if none is given.
        Raises :class:`~holdfast.Fenced` once this incarnation is over by a decision of the store, and
        :class:`~holdfast.StoreLost` while the store has not confirmed for too long that it goes on: write
        nothing then, and call again later.
        """
        named = self._generation if generation is None else arguments.whole("generation", generation, U64_MAX)
        return Fence(*self._native.fence(named))

    def check(self, fence: Union[Fence, str], timeout: Optional[float] = None) -> bool:
        """True if the store says that a fence of any process holds. ::

            if job.check(token):
                write()

        Raises :class:`~holdfast.Fenced` once that incarnation is over, so that a forgotten `if` writes nothing,
        :class:`~holdfast.Refused` for what is no fence, and as every call if the store cannot be asked:
        then nobody knows.
        """
        token = arguments.text("fence", fence.token if isinstance(fence, Fence) else fence)
        return self._native.check(token, arguments.seconds_or_never("timeout", timeout))

    @contextmanager
    def replacing(self, path: Union[str, os.PathLike[str]], timeout: Optional[float] = None) -> Iterator[str]:
        """Writes a file that only the living replace. ::

            with job.replacing("checkpoint.pt") as written:
                torch.save(state, written)

        The body writes to the path that it is given, beside ``path``. After it that file is synced, and
        renamed to ``path`` only if this incarnation is alive then, by the store and by this host's clock: else
        :class:`~holdfast.Fenced` is raised and ``path`` stays as it was, as after an exception in the
        body.
        """
        path, timeout = arguments.path("path", path), arguments.seconds_or_never("timeout", timeout)
        folder, name = os.path.split(path)
        written = os.path.join(folder, f".{name}.{self.process}.{self.incarnation}")
        try:
            yield written
            self._native.replace_file(written, path, self._generation, timeout)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(written)

    @contextmanager
    def lock(self, name: str, timeout: Optional[float] = None) -> Iterator[int]:
        """A block in which this process alone is, of all that ask for this lock. ::

            with job.lock("dataset"):
                ...

        The process that waits longest is next, so that none waits for ever. If the holder dies, the next gets it once the
        agent has seen it exit; a process on a host that is lost counts as stopped after ``store_lost_ms_max``. The
        number is that of the holding: it grows, so that the guard of a resource can refuse an older one.
        """
        name, timeout = arguments.text("name", name), arguments.seconds_or_never("timeout", timeout)
        lock = self._native.holds().lock(name)
        # It is given on wherever an interruption comes.
        try:
            yield lock.take(timeout)
        finally:
            lock.release()

    def ping(self) -> None:
        """Says that the program gets on. Cheap. From the first time on, the agent counts silence from
        the last one; see :meth:`join`."""
        self._native.ping()

    def progress(self, step: int) -> None:
        """Says how far the program has got. As :meth:`ping`, but only growth counts, so that a program
        that goes in circles is silent; shown by ``holdfast why`` and ``holdfast processes``."""
        self._native.progress(arguments.whole("step", step, U64_MAX))

    @contextmanager
    def paused(self, most: float) -> Iterator[None]:
        """A block that takes its time, as a compilation: the agent does not count silence in it, for
        at most so many seconds (an hour at the outside)."""
        yield from self._in(self._native.paused(arguments.seconds("most", most)))

    @contextmanager
    def critical(self, most: float) -> Iterator[None]:
        """A block that must not be cut short, as the writing of a checkpoint: silence counts, but the
        agent puts off ending the process, for at most so many seconds (ten minutes at the outside)."""
        yield from self._in(self._native.critical(arguments.seconds("most", most)))

    @staticmethod
    def _in(section: _holdfast.Section) -> Iterator[None]:
        try:
            yield
        finally:
            section.end()

    @property
    def valid_for(self) -> Optional[float]:
        """Seconds for which the lease of this incarnation certainly holds, even if the store is not heard of;
        none while that is not certain. The incarnation can be ended before: by another that takes its place,
        by an eviction, by an operator."""
        return self._native.valid_for

    @property
    def main_thread_silent(self) -> Optional[float]:
        """Seconds for which the main thread of this program has not run Python, counted once a second; none where
        nobody watches it. For another thread: the main one runs Python when it asks."""
        return _holdfast.main_thread_silent()

    def leave(self) -> None:
        """Leaves for good: no round waits for this process any longer. Twice is as good as once.

        The end of ``with`` leaves, too: by an exception in it the others are told that one, and it
        counts as a fault.
        """
        self._leave(None)

    def _leave(self, error: Optional[BaseException]) -> None:
        _joined.discard(self)
        for group in self._groups:
            group.close()
        self._native.leave(*ending(error))

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._leave(error)

    def __repr__(self) -> str:
        return (
            f"<holdfast.Job {self.name}/{self.run}: process {self.process}, incarnation {self.incarnation}>"
        )

    def _live(self, found: dict[str, Any]) -> Live:
        live = Live(found["generation"], found["witness"], members(found["members"]))
        self._generation = max(self._generation, live.generation)
        return live


def _value(value: bytes) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        arguments.wrong_type("value", value, "bytes")
    return bytes(value)


def _payload(value: Union[bool, str, bytes], rule: str, priority: int) -> bytes:
    priority = arguments.whole("priority", priority, 255)
    if rule == "and":
        if not isinstance(value, bool):
            arguments.wrong_type("value", value, "True or False by the rule 'and'")
        return b"yes" if value else b"no"
    payload = arguments.text("value", value).encode() if isinstance(value, str) else value
    if not isinstance(payload, bytes):
        arguments.wrong_type("value", value, f"a str or bytes by the rule {rule!r}")
    if rule != "plurality":
        return payload
    return bytes([priority]) + payload if payload else b""


@atexit.register
def _leave_all() -> None:
    """A program that ends has left: the others need not wait for its lease to expire."""
    # What ended it, if it ends by an exception. At a prompt that was only the latest one.
    at_a_prompt = sys.flags.interactive or hasattr(sys, "ps1")
    error = None if at_a_prompt else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        for job in list(_joined):
            try:
                job._leave(error)
            except Exception:  # The program is ending, and a lease ends by itself.
                pass
    finally:
        # Also when leaving is interrupted: no thread may ask for the GIL of an interpreter that ends.
        _holdfast.stop_watching()
