"""What the verbs answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Optional

from ._errors import Regroup


class Member(NamedTuple):
    """One incarnation of a process. A process that died and came back is another member."""

    process: int
    incarnation: int


class Remark(NamedTuple):
    """One incarnation of a process, and a remark about it."""

    process: int
    incarnation: int
    why: str

    def __str__(self) -> str:
        return f"process {self.process} (incarnation {self.incarnation}): {self.why}"


@dataclass(frozen=True)
class Live:
    """Who was alive at one moment inside the call: the same for all of them."""

    generation: int
    """The closed round: grows within a job, never used again."""
    witness: int
    """The revision of the log that decided it."""
    members: tuple[Member, ...]
    """In order of their processes."""

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the members."""
        return tuple(member.process for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __contains__(self, process: object) -> bool:
        """Whether a process, or a member, is alive."""
        return process in self.members or process in self.processes


@dataclass(frozen=True)
class Gathered(Live):
    """Who was there, and what each of them brought."""

    values: tuple[bytes, ...] = ()
    """One for each of the members, in their order."""

    def of(self, process: int) -> bytes:
        """What this process brought."""
        return self.values[self.processes.index(process)]


class Stop(NamedTuple):
    """Why nobody should go on. As text it is a sentence."""

    kind: str
    """``too_few`` ranks, or ``budget_spent``: too many incidents."""
    count: int
    """How many ranks, or incidents, there are."""
    bound: int
    """``active_min``, or ``restarts_max``."""

    def __str__(self) -> str:
        if self.kind == "too_few":
            return f"too few processes have a rank: {self.count}, of at least {self.bound}"
        return f"incidents of the job: {self.count}, and restarts_max is {self.bound}"


@dataclass(frozen=True)
class Iteration:
    """An iteration that has begun, as all its members see it. In ``with`` it is a block that ends early by
    :class:`~holdfast.Regroup`, without an error: call :meth:`~holdfast.Job.advance` behind it."""

    iteration: int
    """Its number: one above the latest of the job, which is never used again."""
    generation: int
    """The closed round that decided it."""
    witness: int
    """The revision of the log that decided it."""
    rank: Optional[int]
    """The caller's rank; none = it does not take part, and may call again."""
    world_size: int
    """How many have a rank: 0 to ``world_size - 1``."""
    members: tuple[Member, ...]
    """Who is in it, in order of their processes."""
    ranks: tuple[Optional[int], ...]
    """A rank, or none, for each of the members, in their order."""
    promoted: tuple[Member, ...]
    """Standbys that became active with it."""
    dropped: tuple[Remark, ...]
    """Who of the iteration before has no rank now, and why."""
    stop: Optional[Stop]
    """Why nobody should go on, if so."""

    def __enter__(self) -> Iteration:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> bool:
        # The next iteration meets the process that this one could not wait for.
        return isinstance(error, Regroup)

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the members."""
        return tuple(member.process for member in self.members)


@dataclass(frozen=True)
class Verdict:
    """How a vote ended. True if it carried."""

    carried: bool
    value: Optional[bytes]
    """The value that won, where the rule elects one."""
    against: tuple[Remark, ...]
    """Who stood against it, and why."""
    generation: int
    """The closed round of the vote itself."""

    def __bool__(self) -> bool:
        return self.carried


@dataclass(frozen=True)
class Event:
    """One line of the job's event log."""

    revision: int
    at_ms: int
    """Log time, in milliseconds; 0 if it is not known."""
    run: str
    """Empty if it is of no run."""
    kind: str
    """``registered``, ``ended``, ``promoted``, ``advanced`` (an iteration with other members than the one before;
    ``details["turnover"]`` says who left and joined, and the first fault), ``round_failed``, ``run_ended``, and
    what later versions add. ``missed`` is no line of the log: a subscription was not told everything from the
    revision ``details["after"]`` up to this one, since the store no longer keeps it."""
    details: dict[str, Any] = field(default_factory=dict)


class Fence(NamedTuple):
    """Proof of who a caller is, for the guard of a resource: a larger one makes all smaller ones void.

    Compare fences of one process as tuples; refuse a caller with a smaller one than the last.
    As text it is the token that ``holdfast fence check`` and :meth:`Job.check` take.
    """

    incarnation: int
    generation: int
    token: str

    def __str__(self) -> str:
        return self.token


def members(pairs: list[tuple[int, int]]) -> tuple[Member, ...]:
    """Members, as the native half says them."""
    return tuple(Member(*pair) for pair in pairs)


def remarks(triples: list[tuple[int, int, str]]) -> tuple[Remark, ...]:
    """Remarks, as the native half says them."""
    return tuple(Remark(*triple) for triple in triples)
