"""Hosts that this machine stands in for: processes that live and die together."""
import os
import pathlib
import re
import signal
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "quickstart"))
from children import Child, Children, Failure  # noqa: E402
from cluster import Cluster  # noqa: E402

# What everybody on a host inherits: where its agents are found, by nobody else.
MARK = "HOLDFAST_RUNTIME_DIR"
END_SECONDS = 20.0


class Host:
    """Everything that was started here, and all that this started in its turn, an agent included."""

    def __init__(self, cluster: Cluster, name: str):
        self.cluster, self.children, self.name = cluster, cluster.children, name
        self.folder = self.children.folder / name.replace(" ", "-")
        self.folder.mkdir(mode=0o700)
        self.running: list[Child] = []

    def start(self, name: str, command: list[str], **environment: str) -> "Program":
        binaries = {"HOLDFAST_AGENT": str(self.cluster.binaries / "holdfast-agent"), "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
        child = self.children.start(name, command, **binaries, **environment, **{MARK: str(self.folder)})
        self.running.append(child)
        return Program(child)

    def kill(self) -> None:
        """SIGKILL for everybody, again until nobody is left: some may just have been started."""
        deadline = time.monotonic() + END_SECONDS
        while pids := self._processes():
            if time.monotonic() > deadline:
                raise Failure(f"{self.name}: processes {pids} do not end")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for child in self.running:
                child.process.poll()
        for child in self.running:
            child.killed = True
            if child in self.children.running:
                self.children.forget(child)
        self.running.clear()

    def kill_program(self) -> None:
        """SIGKILL for the program that the agent runs, and for nothing else."""
        agents = {child.pid for child in self.running}
        for pid in self._processes():
            try:
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            except OSError:
                continue
            if int(stat[1]) in agents and name.startswith("python"):
                os.kill(pid, signal.SIGKILL)
        for child in self.running:
            child.killed = True
            if child in self.children.running:
                self.children.forget(child)

    def _processes(self) -> list[int]:
        mark = f"{MARK}={self.folder}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if mark in environment and not dead:
                found.append(int(entry.name))
        return found


class Hosts:
    """All hosts, so that nothing is left behind."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.all: list[Host] = []

    def add(self, name: str) -> Host:
        self.all.append(Host(self.cluster, name))
        return self.all[-1]

    def kill_all(self) -> None:
        for host in self.all:
            host.kill()


class Program:
    """A child and what it says, line by line, with the time at which it was read."""

    def __init__(self, child: Child):
        self.child = child
        self.heard: list[tuple[float, re.Match]] = []
        self._following = open(child.log, errors="replace")
        self._line = ""

    def listen(self, pattern: str) -> list[tuple[float, re.Match]]:
        """New lines that the pattern matches somewhere."""
        found = []
        for part in self._following:
            self._line += part
            if self._line.endswith("\n"):
                match = re.search(pattern, self._line)
                if match:
                    found.append((time.monotonic(), match))
                self._line = ""
        self.heard += found
        return found
