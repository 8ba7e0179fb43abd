"""What can go wrong. Every error says its code, whether the same call can succeed when it is
repeated, and whether it had an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """This incarnation, its lease, or its run has ended, for ever. Stop what you do, and join anew."""


class RoundTimeout(HoldfastError, TimeoutError):
    """A round did not close in time. The text names who was missing, where, and in which state."""


class Unavailable(HoldfastError, ConnectionError):
    """The store cannot be reached, or has no leader. Nothing is lost; it may pass."""


class Refused(HoldfastError, ValueError):
    """The call does not fit: a bad name, other terms than those of the others, a limit."""


class ForkedError(HoldfastError, RuntimeError):
    """A job that was joined before a fork was used behind it."""


class BlockFailed(HoldfastError):
    """The atomic block before did not succeed for everybody: undo it. Everybody is told the same.

    ``against`` says who made it fail, ``live`` who is there now.
    """

    def __init__(self, name: str, against: tuple[Remark, ...], live: Live) -> None:
        who = "; ".join(str(one) for one in against) or "nobody of it is left"
        super().__init__(f"atomic block {name!r} failed: {who}", "conflict", True, "applied")
        self.name = name
        self.against = against
        self.live = live

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.against, self.live)


_CLASSES: dict[str, type[HoldfastError]] = {
    "fenced": Fenced,
    "lease_ended": Fenced,
    "superseded": Fenced,
    "session_expired": Fenced,
    "timeout": RoundTimeout,
    "unavailable": Unavailable,
    "not_leader": Unavailable,
    "overloaded": Unavailable,
    "forked": ForkedError,
    "internal": HoldfastError,
}


def of(code: str, text: str, retryable: bool, outcome: str) -> HoldfastError:
    """The exception for an error of the native half."""
    return _CLASSES.get(code, Refused)(text, code, retryable, outcome)
