"""The keys of a run, without torch: those of ``holdfast kv``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional, Union

from . import _arguments as arguments
from . import _holdfast
from ._arguments import U64_MAX

I64_MAX = 2**63 - 1


class Change(NamedTuple):
    """One change of one key."""

    revision: int
    """Where to go on watching: from this plus one."""
    key: str
    kind: str
    """``put``, ``delete``, and for queues ``push`` and ``pop``."""
    value: Optional[bytes]
    """What was put."""


class Compared(NamedTuple):
    """What a compare-and-set came to. True if the value was written."""

    swapped: bool
    value: Optional[bytes]
    """The value now; none = the key is absent."""

    def __bool__(self) -> bool:
        return self.swapped


class Keys:
    """The keys of a job's run. Keys are text, values bytes; a ``str`` is written as UTF-8.

    Every change is made exactly once, also when the leader changes meanwhile. Calls release the GIL, end
    at Ctrl-C, and wait for the store as long as it takes, or for ``timeout`` seconds.
    """

    def __init__(self, native: _holdfast.Keys) -> None:
        """Use :attr:`Job.kv`."""
        self._native = native

    def put(self, key: str, value: Union[str, bytes], timeout: Optional[float] = None) -> int:
        """Writes a value. Answers the revision of the change."""
        return self._native.put(_key(key), _value("value", value), arguments.seconds_or_never("timeout", timeout))

    def get(self, key: str, timeout: Optional[float] = None) -> Optional[bytes]:
        """The value of a key; none if it is absent."""
        return self._native.get(_key(key), arguments.seconds_or_never("timeout", timeout))

    def add(self, key: str, amount: int = 1, timeout: Optional[float] = None) -> int:
        """Adds to a number, 0 if the key is absent, and answers the new one. It is kept as decimal text."""
        amount = arguments.signed("amount", amount, I64_MAX)
        return self._native.add(_key(key), amount, arguments.seconds_or_never("timeout", timeout))

    def cas(
        self,
        key: str,
        expected: Union[str, bytes, None],
        desired: Union[str, bytes],
        timeout: Optional[float] = None,
    ) -> Compared:
        """Compare-and-set: writes ``desired`` if the value is ``expected``; none = if the key is absent."""
        wanted = None if expected is None else _value("expected", expected)
        timeout = arguments.seconds_or_never("timeout", timeout)
        return Compared(*self._native.compare_and_set(_key(key), wanted, _value("desired", desired), timeout))

    def delete(self, key: str, timeout: Optional[float] = None) -> bool:
        """Takes a key away. Whether it was there."""
        return self._native.delete(_key(key), arguments.seconds_or_never("timeout", timeout))

    def wait(self, keys: Union[str, Sequence[str]], timeout: Optional[float] = None) -> None:
        """Waits until a key, or all of some, exist."""
        wanted = [keys] if isinstance(keys, str) else arguments.sequence("keys", keys, "a str, or a list of str")
        timeout = arguments.seconds_or_never("timeout", timeout)
        self._native.wait([_key(key, "keys") for key in wanted], timeout)

    def watch(
        self, prefix: str = "", from_revision: Optional[int] = None, timeout: Optional[float] = None
    ) -> Iterator[Change]:
        """Changes of the keys that start with ``prefix``, in order, each once: all from ``from_revision`` on,
        or all after this call. Waits for each as long as it takes; with a ``timeout`` it ends when nothing
        has come for so many seconds."""
        begin = None if from_revision is None else arguments.whole("from_revision", from_revision, U64_MAX)
        timeout = arguments.seconds_or_never("timeout", timeout)
        return _changes(self._native.watch(_key(prefix, "prefix"), begin), timeout)


def _changes(native: _holdfast.Changes, timeout: Optional[float]) -> Iterator[Change]:
    while True:
        found = native.next(timeout)
        if found is None:
            return
        revision, changes = found
        for key, kind, value in changes:
            yield Change(revision, key.decode(errors="surrogateescape"), kind, value)


def _key(key: str, name: str = "key") -> bytes:
    return arguments.text(name, key).encode()


def _value(name: str, value: Union[str, bytes]) -> bytes:
    if isinstance(value, str):
        return arguments.text(name, value).encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        arguments.wrong_type(name, value, "bytes or a str")
    return bytes(value)
