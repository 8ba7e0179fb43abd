"""Somebody who writes all the time: shows how long writes pause, and that each counts once."""
import dataclasses
import threading
import time

from tcpstore_wire import Client

KEY = "supervisor/writes"
PERIOD_SECONDS = 0.02
# Longer than any pause that the quickstart would call a success.
CALL_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Write:
    """One acknowledged add; times are of the monotonic clock."""
    sent: float
    answered: float
    result: int

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


class Writer(threading.Thread):
    """Adds 1 about fifty times a second until it is stopped."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self.client = Client("127.0.0.1", port, timeout=CALL_SECONDS)
        self.writes: list[Write] = []
        self.error: Exception | None = None
        self._ending = threading.Event()
        self._in_flight = None

    def act_in_flight(self, action) -> None:
        """Calls `action` once while a write is on its way."""
        self._in_flight = action

    def run(self) -> None:
        try:
            while not self._ending.wait(PERIOD_SECONDS):
                sent = time.monotonic()
                self.client.send_add(KEY, 1)
                if self._in_flight:
                    action, self._in_flight = self._in_flight, None
                    action()
                result = self.client.receive_add()
                self.writes.append(Write(sent, time.monotonic(), result))
        except Exception as error:  # handed to the caller of `stop`
            self.error = error

    def stop(self) -> list[Write]:
        self._ending.set()
        self.join()
        self.client.close()
        if self.error:
            raise self.error
        return self.writes
