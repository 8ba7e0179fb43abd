"""Child processes of the quickstart: started, logged, watched and stopped by their process ids."""
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time

# Above this the kernel hands out ports to clients, and a listener may find its port taken.
PORT_MAX = 32767
PORT_MIN = 21000
TAIL_LINES = 15
STOP_SECONDS = 60.0
PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """The quickstart cannot go on; the message says what happened."""


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now and that were not given before.

    Each process begins to look elsewhere, so that two quickstarts do not meet.
    """
    span = PORT_MAX - PORT_MIN
    ports: list[int] = []
    for offset in range(span):
        port = PORT_MIN + (os.getpid() * 16 + offset) % span
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        _given.add(port)
        if len(ports) == count:
            return ports
    raise Failure(f"no {count} free ports between {PORT_MIN} and {PORT_MAX}")


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Even a quickstart that is killed with SIGKILL leaves nothing behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One process with its log file."""

    def __init__(self, name: str, command: list[str], log: pathlib.Path, environment: dict[str, str]):
        self.name, self.log = name, log
        # Killed by us, so that its end is no news.
        self.killed = False
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True, preexec_fn=_die_with_parent)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        lines = self.text().splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {self.name} | {line}" for line in lines) or f"  {self.name} | (nothing)"

    def kill(self) -> None:
        self.killed = True
        self.process.kill()


class Children:
    """All processes that the quickstart has started."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.running: list[Child] = []

    def start(self, name: str, command: list[str], **environment: str) -> Child:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        child = Child(name, command, self.folder / f"{name}.log", inherited | environment)
        self.running.append(child)
        return child

    def forget(self, child: Child) -> None:
        """It has ended, as it should."""
        child.process.wait()
        self.running.remove(child)

    def stop(self, *children: Child) -> list[Child]:
        """Ends them with SIGTERM; returns those that needed SIGKILL or did not exit with 0."""
        for child in children:
            if child.exit_code is None:
                child.process.terminate()
        deadline, unclean = time.monotonic() + STOP_SECONDS, []
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.process.wait()
            if child.exit_code != 0:
                unclean.append(child)
            self.running.remove(child)
        return unclean

    def kill_all(self) -> None:
        for child in self.running:
            if child.exit_code is None:
                child.kill()
                child.process.wait()
        self.running.clear()

    def check(self, may_end: tuple[Child, ...] = ()) -> None:
        """Nobody has ended unasked; those that may end have not failed."""
        for child in self.running:
            if child.exit_code is None or child.killed or (child in may_end and child.exit_code == 0):
                continue
            raise Failure(f"{child.name} ended with exit code {child.exit_code}")

    def tails(self) -> str:
        """What everybody said last, the failed ones last: they are what the reader looks for."""
        ordered = sorted(self.running, key=lambda child: child.exit_code not in (None, 0))
        return "\n".join(child.tail() for child in ordered)
