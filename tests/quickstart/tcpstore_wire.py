"""PyTorch's TCPStore protocol (torch >= 2.2) in plain Python: a small blocking client.

It exists so that the quickstart can write, measure and check without PyTorch. One request is
outstanding at a time; as in PyTorch's own client, a connection that breaks is never opened again.
All integers are little-endian; a key travels with a `/` in front.
"""
import socket
import struct

MAGIC = 0x3C85F7CE
VALIDATE, SET, GET, ADD, CHECK, WAIT, DELETE_KEY, PING, BARRIER = 0, 1, 3, 4, 5, 6, 8, 13, 18


class WireError(Exception):
    """The server closed the connection or answered something that is not the protocol."""


def text(value: bytes) -> bytes:
    """A byte string as it travels: its length, then its bytes."""
    return struct.pack("<Q", len(value)) + value


def key_text(key: str) -> bytes:
    """A key as it travels."""
    return text(b"/" + key.encode())


class Client:
    """One connection to a TCPStore server."""

    def __init__(self, host: str, port: int, timeout: float = 60.0, nonce: int = 1):
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(struct.pack("<BI", VALIDATE, MAGIC) + struct.pack("<BI", PING, nonce))
        if self._unpack("<I") != nonce:
            raise WireError("the PING came back with another nonce: this is not a TCPStore server")

    def close(self) -> None:
        self.socket.close()

    def set(self, key: str, value: bytes) -> None:
        """Not answered: only the answer to a later call on this connection says that it is stored."""
        self._send(SET, key_text(key), text(value))

    def get(self, key: str) -> bytes:
        """Waits for the key, then reads it, as PyTorch's client does."""
        self.wait([key])
        self._send(GET, key_text(key))
        return self._receive(self._unpack("<Q"))

    def add(self, key: str, delta: int) -> int:
        self.send_add(key, delta)
        return self.receive_add()

    def send_add(self, key: str, delta: int) -> None:
        """The first half of `add`, for callers that act while the call is in flight."""
        self._send(ADD, key_text(key), struct.pack("<q", delta))

    def receive_add(self) -> int:
        """The second half of `add`."""
        return self._unpack("<q")

    def check(self, keys: list[str]) -> bool:
        self._send(CHECK, struct.pack("<Q", len(keys)), *map(key_text, keys))
        return self._unpack("<B") == 0

    def wait(self, keys: list[str]) -> None:
        self._send(WAIT, struct.pack("<Q", len(keys)), *map(key_text, keys))
        if self._unpack("<B") != 0:
            raise WireError("a WAIT that nobody cancelled was answered as cancelled")

    def delete(self, key: str) -> bool:
        self._send(DELETE_KEY, key_text(key))
        return self._unpack("<q") == 1

    def barrier(self, key: str, world_size: int) -> None:
        """Counts this arrival and returns once `world_size` have been counted."""
        self._send(BARRIER, key_text(key), struct.pack("<q", world_size))
        if self._unpack("<B") != 0:
            raise WireError("a BARRIER that nobody cancelled was answered as cancelled")

    def _send(self, operation: int, *parts: bytes) -> None:
        self.socket.sendall(bytes([operation]) + b"".join(parts))

    def _unpack(self, layout: str) -> int:
        return struct.unpack(layout, self._receive(struct.calcsize(layout)))[0]

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise WireError("the server closed the connection")
            received += part
        return bytes(received)
