"""This process's TCP connections, found and cut by address. For process groups that cannot be told to let go."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

Address = tuple[str, int]


def listening() -> set[Address]:
    """Where this process listens."""
    return {
        one.getsockname()[:2]
        for one in _sockets()
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def cut(addresses: set[Address]) -> int:
    """Ends the connections to and from these listeners: reads and writes fail, in this process and in the others. The
    descriptors stay open: their owners close them. Answers how many there were."""
    found = 0
    for one in _sockets():
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            continue
        with contextlib.suppress(OSError):  # It is not connected, or not any more.
            if one.getpeername()[:2] in addresses or one.getsockname()[:2] in addresses:
                one.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def _sockets() -> Iterator[socket.socket]:
    """TCP sockets, each by a descriptor of its own, so that nobody else's takes its place meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        try:
            # A copy of a file's descriptor that is closed would give up the locks that this process has on the file.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            one = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with one:
            if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                yield one
