"""What callers give, checked before anything is done with it. Every error names the argument, says what
was given, and what it has to be."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Optional, SupportsIndex, Union

from ._errors import Refused, WrongType
from ._policy import NAMES, Assignment, Policy
from ._types import Iteration, Live

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
SECONDS_MAX = 10**9
"""Longest time that can be given: some thirty years."""
PATH_BYTES_MAX = 4096
"""Longest path that the system takes."""
SHOWN_MAX = 80
"""Most characters of a value that an error shows."""


def whole(name: str, given: Any, most: int = U32_MAX, also: str = "") -> int:
    """A number that the cluster counts with. ``also``: what else it can be, checked before."""
    wanted = f"a whole number from 0 to {most}{also}"
    if not isinstance(given, SupportsIndex) or isinstance(given, bool):
        wrong_type(name, given, wanted)
    number = operator.index(given)
    if not 0 <= number <= most:
        refuse(name, given, wanted)
    return number


def signed(name: str, given: Any, most: int) -> int:
    """A number that may be negative."""
    wanted = f"a whole number from -{most} to {most}"
    if not isinstance(given, SupportsIndex) or isinstance(given, bool):
        wrong_type(name, given, wanted)
    number = operator.index(given)
    if not -most <= number <= most:
        refuse(name, given, wanted)
    return number


def sequence(name: str, given: Any, wanted: str) -> Sequence[Any]:
    """Some values in order."""
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Sequence):
        wrong_type(name, given, wanted)
    return given


def seconds(name: str, given: Any) -> float:
    """A length of time."""
    wanted = f"a number of seconds from 0 to {SECONDS_MAX}"
    if isinstance(given, (bool, str, bytes)):
        wrong_type(name, given, wanted)
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        wrong_type(name, given, wanted)
    if not 0 <= number <= SECONDS_MAX:  # Not a number is not in between, either.
        refuse(name, given, wanted)
    return number


def seconds_or_never(name: str, given: Any) -> Optional[float]:
    """A length of time, or none."""
    return None if given is None else seconds(name, given)


def text(name: str, given: Any) -> str:
    """A text that can be written."""
    if not isinstance(given, str):
        wrong_type(name, given, "a str")
    try:
        given.encode()
    except UnicodeEncodeError:
        refuse(name, given, "a str that is valid Unicode")
    return given


def text_or_none(name: str, given: Any) -> Optional[str]:
    """A text, or none. An empty one is none, as in the environment."""
    return None if given is None else text(name, given) or None


def path(name: str, given: Any) -> str:
    """A path of a file."""
    try:
        found = os.fspath(given)
    except TypeError:
        found = None
    if not isinstance(found, str):
        wrong_type(name, given, "a path: a str, or a pathlib.Path")
    try:
        fits = 0 < len(os.fsencode(found)) <= PATH_BYTES_MAX and "\0" not in found
    except UnicodeEncodeError:
        fits = False
    if not fits:
        refuse(name, given, "the path of a file")
    return found


def readable(name: str, given: Any) -> str:
    """The path of a regular file that can be read now: opening a pipe could wait for ever."""
    found = path(name, given)
    if os.path.exists(found) and not os.path.isfile(found):
        refuse(name, given, "a file that can be read (it is not a regular file)")
    try:
        with open(found, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        refuse(name, given, f"a file that can be read ({getattr(error, 'strerror', None) or error})")
    return found


def flag(name: str, given: Any) -> bool:
    """Yes or no."""
    if not isinstance(given, bool):
        wrong_type(name, given, "True or False")
    return given


def choice(name: str, given: Any, known: Sequence[str]) -> str:
    """One of some words."""
    wanted = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
    if not isinstance(given, str):
        wrong_type(name, given, wanted)
    if given not in known:
        near = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.4)
        refuse(name, given, wanted + (f"; did you mean {near[0]!r}?" if near else ""))
    return given


def among(name: str, given: Any) -> Union[int, list[int], None]:
    """Whose round it is: a generation, process numbers in growing order, or none for all."""
    wanted = "'all', an Iteration, a Live, a generation, or a list of process numbers"
    if isinstance(given, str):
        return None if given == "all" else refuse(name, given, wanted)
    if isinstance(given, (Iteration, Live)):
        return given.generation
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return whole(name, given, U64_MAX)
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Sequence):
        wrong_type(name, given, wanted)
    numbers = sorted({whole(f"a process of {name}", one) for one in given})
    if not numbers:
        refuse(name, given, wanted + ", one at least")
    return numbers


def callable_or_none(name: str, given: Any) -> Optional[Callable[..., object]]:
    """Something to call, or none."""
    if given is not None and not callable(given):
        wrong_type(name, given, "a function, or None")
    return given


def policy(name: str, given: Any, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a policy, and over them those that were given by their names."""
    if not isinstance(given, Policy):
        wrong_type(name, given, "a Policy")
    for number in numbers:
        if number not in NAMES:
            near = difflib.get_close_matches(number, NAMES, n=1)
            raise TypeError(
                f"join() has no argument {number!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return {**{number: getattr(given, number) for number in NAMES}, **numbers}


def labels(name: str, given: Any) -> dict[str, str]:
    """Names with values."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        wrong_type(name, given, "a mapping of str to str, as in {'rack': 'b7'}")
    return {text(f"a key of {name}", key): text(f"{name}[{key!r}]", value) for key, value in given.items()}


def steps(name: str, given: Any) -> list[dict[str, Any]]:
    """Steps of the rank assignment; the store's own names are checked there."""
    wanted = "an Assignment, as Assignment().divisible_by(8), or a list of its steps"
    if isinstance(given, Assignment):
        given = given.steps
    for step in sequence(name, given, wanted):
        if not isinstance(step, Mapping):
            wrong_type(name, given, wanted)
    return [dict(step) for step in given]


def refuse(name: str, given: Any, wanted: str) -> NoReturn:
    """A value that it cannot be."""
    raise Refused(f"{name} is {_shown(given)}; it has to be {wanted}", "invalid_request", False, "none") from None


def wrong_type(name: str, given: Any, wanted: str) -> NoReturn:
    """A value of a type that it cannot be."""
    words = f"{name} is {_shown(given)} ({type(given).__name__}); it has to be {wanted}"
    raise WrongType(words, "invalid_request", False, "none") from None


def _shown(given: Any) -> str:
    try:
        shown = repr(given)
    except Exception:  # It is not ours, and may do anything.
        return f"a {type(given).__name__}"
    return shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 1] + "…"
