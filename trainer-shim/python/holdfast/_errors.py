"""What can go wrong. Every error says its code, whether the same call can succeed when it is
repeated, and whether it had an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._types import Live, Remark


class HoldfastError(Exception):
    """Any failure of a call.

    ``code`` is stable: programs may act on it. ``retryable`` says whether the same call, by the
    same incarnation, can succeed when it is made again. ``outcome`` is ``"none"`` if the call had no
    effect and never will, ``"applied"`` if it had, ``"unknown"`` if nobody can tell.
    """

    def __init__(self, text: str, code: str = "internal", retryable: bool = False, outcome: str = "unknown") -> None:
        super().__init__(text)
        self.code = code
        self.retryable = retryable
        self.outcome = outcome

    def __reduce__(self) -> tuple:
        return type(self), (self.args[0], self.code, self.retryable, self.outcome)


class Fenced(HoldfastError):
    """This incarnation, its lease, or its run has ended, for ever, by a decision of the store. Stop what
    you do, and join anew. A store that does not answer is :class:`StoreLost`."""


class RoundTimeout(HoldfastError, TimeoutError):
    """A round did not close in time. The text names who was missing, where, and in which state."""


class Regroup(HoldfastError):
    """Somebody whom this round needs waits in :meth:`~holdfast.Job.advance`: call it, too."""


class Revoked(HoldfastError):
    """What this call builds on was revoked: stop what runs on it, and go on to the next generation."""


class AttemptEnded(BaseException):
    """The attempt of a function under :func:`holdfast.restart` is over: let it pass. Raised in the function, wherever it
    is, and again if it is swallowed. No :class:`Exception`, so that ``except Exception`` lets it pass."""


class NoMoreRestarts(HoldfastError):
    """The function under :func:`holdfast.restart` is not begun again: too often, or with too few ranks. The text says
    which, and why the latest attempt ended; ``__cause__`` is what it raised in this process, if it did."""


class Over(HoldfastError):
    """The job of this standby is over: the last of its members has left in order. Leave."""


class StoreLost(HoldfastError, ConnectionError):
    """The store cannot be reached, or has no leader. This incarnation has not ended: call again. Where
    ``outcome`` is ``"unknown"`` the call may have had an effect."""


class Refused(HoldfastError, ValueError):
    """The call does not fit: a bad name, a scope that the caller is not in, a limit."""


class WrongType(Refused, TypeError):
    """An argument of a type that it cannot have."""


class ForkedError(HoldfastError, RuntimeError):
    """A job that was joined before a fork was used after it."""


NAMED_MAX = 8
"""Most processes that the text of an error names."""


class BlockFailed(HoldfastError):
    """An atomic block did not succeed for everybody who was in it: undo it. Raised at its end, in every
    process alike; in one whose own body raised, that exception goes on instead.

    ``against`` says who made it fail, and how: by which exception, or how it died or left. It is empty if
    this process did not hear how the block ended, as at a time-out, which makes it fail: then
    ``__cause__`` says why. ``live`` says who was in the block.
    """

    def __init__(
        self, name: str, against: tuple[Remark, ...], live: Live, unheard: Optional[str] = None, outcome: str = "applied"
    ) -> None:
        who = unheard or "; ".join(str(one) for one in against[:NAMED_MAX]) or "nobody of it is left"
        if len(against) > NAMED_MAX:
            who += f"; and {len(against) - NAMED_MAX} more, see `against`"
        super().__init__(f"atomic block {name!r} failed: {who}", "conflict", True, outcome)
        self.name = name
        self.against = against
        self.live = live
        self._unheard = unheard

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.against, self.live, self._unheard, self.outcome)


_CLASSES: dict[str, type[HoldfastError]] = {
    "fenced": Fenced,
    "lease_ended": Fenced,
    "regroup": Regroup,
    "revoked": Revoked,
    "over": Over,
    "superseded": Fenced,
    "session_expired": Fenced,
    "timeout": RoundTimeout,
    "unavailable": StoreLost,
    "not_leader": StoreLost,
    "overloaded": StoreLost,
    "forked": ForkedError,
    "internal": HoldfastError,
}


def of(code: str, text: str, retryable: bool, outcome: str) -> HoldfastError:
    """The exception for an error of the native half."""
    return _CLASSES.get(code, Refused)(text, code, retryable, outcome)
