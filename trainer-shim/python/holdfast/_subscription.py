"""What happens in a job, told to a function as it happens."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from . import _holdfast
from ._errors import HoldfastError
from ._types import Event

LOOK_EVERY = 0.5
"""Seconds after which a subscription notices at the latest that it was closed."""

log = logging.getLogger("holdfast")


class Subscription:
    """A function that is called for what happens. Made by :meth:`Job.on_change`."""

    def __init__(self, native: _holdfast.News, after: int, callback: Callable[[Event], object], of: str) -> None:
        """Use :meth:`Job.on_change`."""
        self._native, self._after, self._callback, self._of = native, after, callback, of
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-events", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether no call begins any more."""
        return self._closed.is_set() or not self._thread.is_alive()

    def close(self) -> None:
        """No call begins from now on. Does not wait for one that goes on."""
        self._closed.set()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                found = self._native.next(LOOK_EVERY)
            except HoldfastError as error:
                # As when the incarnation has ended, or the process has left.
                log.info("%s hears no more events: %s", self._of, error)
                return
            if found is not None:
                self._tell(*found)

    def _tell(self, lines: list[str], compacted: int, upto: int) -> None:
        told = list(map(event, lines))
        if compacted > self._after:
            # A callback that waits for an event has to look.
            told.insert(0, Event(compacted, 0, "", "missed", {"after": self._after}))
        self._after = max(self._after, upto)
        for one in told:
            if self._closed.is_set():
                return
            try:
                self._callback(one)
            except Exception:
                log.exception("%s: the callback of on_change has failed", self._of)


def event(text: str) -> Event:
    """An event, as the native half says it."""
    line = json.loads(text)
    [(kind, details)] = line["what"].items()
    return Event(line["revision"], line["at_ms"], line["run"], kind, details)
