"""The plain Python client against byte sequences recorded from PyTorch's own client and server."""
import socket
import threading
import unittest

from tcpstore_wire import Client, WireError

CONNECT = ("00cef7853c0d01000000", "01000000")


class RecordedServer(threading.Thread):
    """Expects each request and then gives its answer."""

    def __init__(self, *exchanges: tuple[str, str]):
        super().__init__(daemon=True)
        self.exchanges = [(bytes.fromhex(a), bytes.fromhex(b)) for a, b in exchanges]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.difference: tuple[bytes, bytes] | None = None
        self.start()

    def run(self) -> None:
        connection, _ = self.listener.accept()
        with connection, self.listener:
            for expected, answer in self.exchanges:
                received = b""
                while len(received) < len(expected):
                    part = connection.recv(len(expected) - len(received))
                    if not part:
                        break
                    received += part
                if received != expected:
                    self.difference = (received, expected)
                    return
                connection.sendall(answer)


class TestWire(unittest.TestCase):
    def talk(self, call, *exchanges: tuple[str, str]):
        server = RecordedServer(CONNECT, *exchanges)
        client = Client("127.0.0.1", server.port, timeout=10)
        try:
            return call(client)
        finally:
            client.close()
            server.join()
            self.assertIsNone(server.difference)

    def test_set_is_not_answered(self):
        self.talk(lambda c: c.set("k", b"v"), ("0102000000000000002f6b010000000000000076", ""))

    def test_get_waits_first(self):
        value = self.talk(lambda c: c.get("k"),
                          ("06010000000000000002000000000000002f6b", "00"),
                          ("0302000000000000002f6b", "010000000000000076"))
        self.assertEqual(value, b"v")

    def test_add_is_signed(self):
        value = self.talk(lambda c: c.add("n", -7), ("0402000000000000002f6ef9ffffffffffffff", "feffffffffffffff"))
        self.assertEqual(value, -2)

    def test_check_answers_zero_for_yes(self):
        request = "05020000000000000002000000000000002f6b08000000000000002f6d697373696e67"
        self.assertFalse(self.talk(lambda c: c.check(["k", "missing"]), (request, "01")))
        self.assertTrue(self.talk(lambda c: c.check(["k"]), ("05010000000000000002000000000000002f6b", "00")))

    def test_delete_counts(self):
        self.assertTrue(self.talk(lambda c: c.delete("k"), ("0802000000000000002f6b", "0100000000000000")))
        self.assertFalse(self.talk(lambda c: c.delete("k"), ("0802000000000000002f6b", "0000000000000000")))

    def test_barrier(self):
        self.talk(lambda c: c.barrier("b", 1), ("1202000000000000002f620100000000000000", "00"))

    def test_a_closed_connection_is_an_error(self):
        with self.assertRaisesRegex(WireError, "closed"):
            self.talk(lambda c: c.add("n", 5), ("0402000000000000002f6e0500000000000000", ""))


if __name__ == "__main__":
    unittest.main()
