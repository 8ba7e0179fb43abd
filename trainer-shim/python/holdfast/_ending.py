"""Why an incarnation ended, in words."""

from __future__ import annotations

from typing import Optional

EXCEPTION_READ_MAX = 1000
"""Most characters of an exception's text that are looked at."""


def in_words(error: BaseException) -> str:
    """An exception as the last line of a traceback has it."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    try:
        said = str(error)[:EXCEPTION_READ_MAX]
    except Exception:  # It is not ours, and may do anything.
        said = "its text cannot be had"
    words = f"{name}: {said}" if said else name
    return words.encode(errors="replace").decode()


def ending(error: Optional[BaseException]) -> tuple[Optional[str], Optional[int]]:
    """Why an incarnation ends: an exception, or the exit code that one stands for."""
    if error is None or isinstance(error, GeneratorExit):
        return None, None
    if not isinstance(error, SystemExit):
        return in_words(error), None
    if error.code is None:
        return None, 0
    return None, error.code & 0xFF if isinstance(error.code, int) else 1
