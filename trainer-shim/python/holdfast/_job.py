"""A process's place in a job, and what it can say there."""

from __future__ import annotations

import atexit
import json
import operator
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Optional, SupportsIndex, Union

from . import _holdfast
from ._errors import BlockFailed, Fenced, Refused
from ._types import Event, Fence, Iteration, Live, Member, Verdict, members, remarks

TTL_DEFAULT = 5.0
PATIENCE_DEFAULT = 60.0
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1

_joined: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """One life of one process in a job. Made by :meth:`join`.

    Verbs may be called from any thread. All of them release the GIL while they wait, and Ctrl-C ends
    them. Without a ``timeout`` they wait as long as it takes, also while the store elects a new
    leader; with one, in seconds, they raise :class:`~holdfast.RoundTimeout`, which names who was
    missing. A call that timed out is withdrawn: calling again is a new call.

    Rounds wait for *every* live active process. So let all processes of a job call the same verbs
    in the same order, and let whoever comes late begin where the others come by again.
    """

    def __init__(self, process: _holdfast.Process, terms: dict[str, Any]) -> None:
        """Use :meth:`join`."""
        self._native = process
        self._terms = terms
        self._generation = 0
        # Of each name: the generation that opened the block, and whether it succeeded here.
        self._blocks: dict[str, tuple[int, bool]] = {}
        self.process: int = process.process
        """This process's number: its rank at the launch, as a rule."""
        self.incarnation: int = process.incarnation
        """This life of it: never used again."""
        self.name, self.run = process.scope
        _joined.add(self)

    @classmethod
    def join(
        cls,
        job: Optional[str] = None,
        run: Optional[str] = None,
        process: Union[int, Literal["any"], None] = None,
        world: Optional[int] = None,
        *,
        members_min: int = 1,
        last_call: float = 0.0,
        evict_after: Optional[float] = None,
        restarts_max: int = 0,
        active_min: int = 1,
        assignment: Sequence[Mapping[str, Any]] = (),
        role: str = "active",
        labels: Optional[Mapping[str, str]] = None,
        takeover: bool = False,
        open_run: bool = False,
        store: Optional[str] = None,
        token_file: Optional[Union[str, os.PathLike[str]]] = None,
        host: Optional[str] = None,
        ttl: float = TTL_DEFAULT,
        timeout: float = PATIENCE_DEFAULT,
        heartbeat: float = 1.0,
        soft_timeout: Optional[float] = 60.0,
        hard_timeout: Optional[float] = 90.0,
        grace: float = 5.0,
        on_silence: Optional[Callable[[float, Optional[float]], object]] = None,
    ) -> Job:
        """Joins a job with a new life of this process.

        Under ``holdfast-agent run``, which says so in ``HOLDFAST_CONTROL``, the process is attached to
        the agent of its host unless ``store`` is given: if it dies, the others hear of it within
        milliseconds. Otherwise it takes a lease of its own, and they hear of it after ``ttl``.

        Where these are not given: ``store`` (``host:port`` of nodes, separated by commas) is
        ``HOLDFAST_STORE``; ``job`` is ``HOLDFAST_JOB``, else the agent's, else ``default``; ``run`` is ``HOLDFAST_RUN``,
        else the job's open run, which is opened if there is none; ``token_file`` is
        ``HOLDFAST_TOKEN_FILE``; ``process`` is ``RANK``, else the next number that is free, which ``"any"``
        asks for in any case; ``world`` is ``WORLD_SIZE``.

        ``world``: the first iteration waits for so many processes. ``members_min``: no iteration
        has fewer. ``last_call``: seconds that an iteration waits for whoever was lost to come back.
        ``evict_after``: seconds after which those who do not come are declared dead, if most are
        there. ``restarts_max``, ``active_min``: when :attr:`Iteration.stop` is said. ``assignment``:
        steps of the rank assignment, as in ``[{"divisible_by": {"divisor": 8}}]``. All of these are to
        be the same in all processes: whoever arrives first at an iteration sets them, and those that
        say otherwise are refused.

        ``role``: ``"active"``, or ``"standby"``, a spare that waits in :meth:`advance` until it is
        needed. ``labels``: what this process says of itself, for the rank assignment and for people.

        ``ttl``: seconds without a sign of life after which this process counts as dead, for a lease of
        its own; that of an agent is the agent's (``--lease-ttl``), as are ``host`` and the token. Until
        then a killed process of this number is still alive: joining waits for its end, at most
        ``timeout`` seconds, unless ``takeover`` says that it is to be replaced at once. ``open_run``: ``run`` is
        opened if it is not the job's open one, which ends that.

        The agent watches the process; without an agent nobody does. The library sends a sign of life
        each ``heartbeat`` seconds; a process that has called :meth:`ping` or :meth:`progress` is
        silent since the last of these, if it does not wait in a call. After ``soft_timeout`` seconds of
        silence that is reported, and ``on_silence(silent, ends_in)`` is called in a thread of its own,
        with both in seconds: what it can do is abort what the program hangs in. After ``hard_timeout``
        the process gets SIGCONT and SIGTERM, and ``grace`` seconds later SIGKILL. ``None`` is never. The
        defaults are those of NVRx.
        """
        if role not in ("active", "standby"):
            raise Refused(f"role {role!r} is neither 'active' nor 'standby'", "invalid_request", False, "none")
        control = None if store or open_run else os.environ.get("HOLDFAST_CONTROL") or None
        store = store or os.environ.get("HOLDFAST_STORE")
        if not store and not control:
            text = (
                "no store: give store=, or set HOLDFAST_STORE to host:port of its nodes, separated by commas, "
                "or start this under `holdfast-agent run`"
            )
            raise Refused(text, "invalid_request", False, "none")
        token = token_file or os.environ.get("HOLDFAST_TOKEN_FILE") or None
        wanted = {
            "control": control,
            "store": store or "",
            "token_file": None if token is None else os.fspath(token),
            "job": job or os.environ.get("HOLDFAST_JOB") or None,
            "run": run or os.environ.get("HOLDFAST_RUN") or None,
            "host": host or socket.gethostname(),
            "ttl": float(ttl),
            "patience": float(timeout),
            "process": None if process == "any" else _number("process", process, "RANK"),
            "standby": role == "standby",
            "labels": dict(labels or {}),
            "takeover": takeover,
            "open_run": open_run,
            "heartbeat": float(heartbeat),
            "soft_timeout": None if soft_timeout is None else float(soft_timeout),
            "hard_timeout": None if hard_timeout is None else float(hard_timeout),
            "grace": float(grace),
            "on_silence": on_silence,
        }
        terms = {
            "world": _number("world", world, "WORLD_SIZE") or 0,
            "members_min": _whole("members_min", members_min),
            "last_call": float(last_call),
            "assignment": json.dumps([dict(step) for step in assignment]),
            "active_min": _whole("active_min", active_min),
            "restarts_max": _whole("restarts_max", restarts_max),
            "evict_after": None if evict_after is None else float(evict_after),
        }
        return cls(_holdfast.Process.join(wanted), terms)

    def live_processes(self, name: str = "live", timeout: Optional[float] = None) -> Live:
        """Who is alive: returns when every live active process has called with this name, and tells
        all of them the same."""
        return self._live(self._native.live_processes(name, timeout))

    def advance(self, timeout: Optional[float] = None) -> Iteration:
        """The next iteration of the job, with this process in it.

        Returns when every live active process has called. Whoever starts early or comes late is in
        the one that is open. ``rank`` is none for a process that has no place this time.
        """
        found = self._native.advance(self._terms, timeout)
        for key in ("members", "promoted"):
            found[key] = members(found[key])
        found["ranks"], found["dropped"] = tuple(found["ranks"]), remarks(found["dropped"])
        self._generation = max(self._generation, found["generation"])
        return Iteration(**found)

    def vote(
        self,
        tag: str,
        value: Union[bool, str, bytes],
        rule: str = "and",
        base: Optional[int] = None,
        *,
        priority: int = 0,
        timeout: Optional[float] = None,
    ) -> Verdict:
        """Votes with all live active processes; votes of other tags go on beside it.

        ``rule``: ``"and"`` (``value`` is true or false; carried if all say true), ``"unanimous"`` (all
        say the same value), ``"plurality"`` (lowest ``priority`` wins, then most votes, then the least
        value; an empty value abstains). ``base``: a generation whose members alone vote, and all have to
        agree, so that one that died since then makes it fail.
        """
        payload = _payload(value, rule, priority)
        base = None if base is None else _whole("base", base, U64_MAX)
        found = self._native.vote(tag, rule, payload, base, timeout)
        found["against"] = remarks(found["against"])
        return Verdict(**found)

    @contextmanager
    def atomic(self, name: str = "step", timeout: Optional[float] = None) -> Iterator[Live]:
        """A block of work that succeeds for everybody or for nobody. ::

            with job.atomic() as live:
                ...

        Entering closes the block before and opens this one, in one step that all live active
        processes take together. The block before succeeded if every process that was in it is here,
        in the same life, and ended it without an exception. If not, entering raises
        :class:`~holdfast.BlockFailed`, in every process alike: undo the block before, and enter again.

        An exception in the body goes on as it is; the others hear of it at the next entry. The last
        block has no verdict before another is entered: end with an empty one.
        """
        found = self._native.atomic(name, self._blocks.get(name), timeout)
        live = self._live(found["live"])
        if found["succeeded"] is False:
            # Nobody goes into the block that was opened: the next call says so.
            self._blocks.pop(name, None)
            raise BlockFailed(name, remarks(found["against"]), live)
        self._blocks[name] = (live.generation, False)
        yield live
        self._blocks[name] = (live.generation, True)

    def quorum(self, name: str, least: int, most: int, settle: float, timeout: Optional[float] = None) -> Live:
        """Meets whoever is there: returns with ``most`` members, or ``settle`` seconds after the first
        ``least``. Who is not there is left out, and stays alive."""
        numbers = (_whole("least", least), _whole("most", most))
        return self._live(self._native.quorum(name, numbers, settle, timeout))

    def waiting(self, name: str, timeout: Optional[float] = None) -> tuple[Member, ...]:
        """Who waits in a round at this moment. Waits for nobody."""
        for text in self._native.rounds(timeout):
            found = json.loads(text)
            if found["round"] == name:
                stretches = found["arrived"]
                return tuple(
                    Member(first["process"] + n, first["incarnation"] + n)
                    for first in stretches
                    for n in range(first.get("count", 1))
                )
        return ()

    def alive(self, timeout: Optional[float] = None) -> tuple[Member, ...]:
        """Whoever is alive for the cluster at this moment, standbys included. Waits for nobody, so two
        processes that ask may hear different things: to act together, use :meth:`live_processes`."""
        return tuple(Member(process, incarnation) for process, incarnation, _ in self._native.processes(timeout))

    def iteration(self, timeout: Optional[float] = None) -> tuple[int, bool]:
        """The job's latest iteration, 0 before the first, and whether this process is in it. Waits
        for nobody."""
        return self._native.iteration(timeout)

    def events(self, after: int = 0, timeout: Optional[float] = None) -> list[Event]:
        """What happened in the job behind a revision, oldest first. To go on, pass the revision of
        the last one."""
        found: list[Event] = []
        while True:
            page, upto = self._native.events(after, timeout)
            found += map(_event, page)
            if not page or upto <= after:
                return found
            after = upto

    def fence(self, generation: Optional[int] = None) -> Fence:
        """Proof that this life is alive now, to be checked by whoever guards a resource: of one
        process, a larger fence makes all smaller ones void.

        ``generation``: in whose name; the latest that this process was told of, if none is given.
        Raises :class:`~holdfast.Fenced` once it is not certain any more.
        """
        named = self._generation if generation is None else _whole("generation", generation, U64_MAX)
        fence = self._native.fence(named)
        if fence is None:
            text = (
                f"process {self.process} (incarnation {self.incarnation}) cannot prove that it is alive: "
                "its lease has ended, or may have; stop writing, and join anew"
            )
            raise Fenced(text, "lease_ended", False, "none")
        return Fence(*fence)

    def check(self, fence: Union[Fence, str], timeout: Optional[float] = None) -> None:
        """Asks the store whether a fence of any process holds; raises :class:`~holdfast.Fenced` if that
        life is over."""
        self._native.check(str(fence), timeout)

    @contextmanager
    def replacing(self, path: Union[str, os.PathLike[str]], timeout: Optional[float] = None) -> Iterator[str]:
        """Writes a file that only the living replace. ::

            with job.replacing("checkpoint.pt") as written:
                torch.save(state, written)

        The body writes to the path that it is given, beside ``path``. After it that file is synced, and
        renamed to ``path`` only if this life is alive then, by the store and by this host's clock: else
        :class:`~holdfast.Fenced` is raised and ``path`` stays as it was, as after an exception in the
        body.
        """
        path = os.fspath(path)
        folder, name = os.path.split(path)
        written = os.path.join(folder, f".{name}.{self.process}.{self.incarnation}")
        try:
            yield written
            self._native.replace_file(written, path, self._generation, timeout)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(written)

    def ping(self) -> None:
        """Says that the program gets on. Cheap. From the first time on, the agent counts silence from
        the last one; see :meth:`join`."""
        self._native.ping()

    def progress(self, step: int) -> None:
        """Says how far the program has got. As :meth:`ping`, but only growth counts, so that a program
        that goes in circles is silent; shown by ``holdfast why`` and ``holdfast processes``."""
        self._native.progress(_whole("step", step, U64_MAX))

    @contextmanager
    def paused(self, most: float) -> Iterator[None]:
        """A block that takes its time, as a compilation: the agent does not count silence in it, for
        at most so many seconds (an hour at the outside)."""
        yield from self._in(self._native.paused(most))

    @contextmanager
    def critical(self, most: float) -> Iterator[None]:
        """A block that must not be cut short, as the writing of a checkpoint: silence counts, but the
        agent puts off ending the process, for at most so many seconds (ten minutes at the outside)."""
        yield from self._in(self._native.critical(most))

    @staticmethod
    def _in(section: _holdfast.Section) -> Iterator[None]:
        try:
            yield
        finally:
            section.end()

    @property
    def valid_for(self) -> Optional[float]:
        """Seconds for which this life is certainly alive, whatever happens; none once it is not
        certain any more."""
        return self._native.valid_for

    def leave(self) -> None:
        """Leaves for good: no round waits for this process any longer. Twice is as good as once."""
        _joined.discard(self)
        self._native.leave()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return (
            f"<holdfast.Job {self.name}/{self.run}: process {self.process}, incarnation {self.incarnation}>"
        )

    def _live(self, found: dict[str, Any]) -> Live:
        live = Live(found["generation"], found["witness"], members(found["members"]))
        self._generation = max(self._generation, live.generation)
        return live


def _whole(what: str, number: Any, most: int = U32_MAX) -> int:
    """The number, if it is one that the cluster counts with."""
    if isinstance(number, SupportsIndex) and 0 <= operator.index(number) <= most:
        return operator.index(number)
    text = f"{what} is {number!r}, and has to be a whole number from 0 to {most}"
    raise Refused(text, "invalid_request", False, "none")


def _number(what: str, given: Optional[int], variable: str) -> Optional[int]:
    """What was given, or else what the environment says."""
    if given is not None:
        return _whole(what, given)
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise Refused(f"{variable}={text!r} is no number", "invalid_request", False, "none") from None
    return _whole(variable, number)


def _payload(value: Union[bool, str, bytes], rule: str, priority: int) -> bytes:
    if rule == "and":
        if not isinstance(value, bool):
            raise TypeError(f"a vote by the rule 'and' is True or False, not {value!r}")
        return b"yes" if value else b"no"
    payload = value.encode() if isinstance(value, str) else value
    if not isinstance(payload, bytes):
        raise TypeError(f"a vote by the rule {rule!r} is a str or bytes, not {value!r}")
    if rule != "plurality":
        return payload
    if not 0 <= priority <= 255:
        raise ValueError(f"priority {priority} is not between 0 and 255")
    return bytes([priority]) + payload if payload else b""


def _event(text: str) -> Event:
    line = json.loads(text)
    [(kind, details)] = line["what"].items()
    return Event(line["revision"], line["at_ms"], line["run"], kind, details)


@atexit.register
def _leave_all() -> None:
    """A program that ends has left: the others need not wait for its lease to expire."""
    for job in list(_joined):
        try:
            job.leave()
        except Exception:  # The program is ending, and a lease ends by itself.
            pass
