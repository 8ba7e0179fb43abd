"""One training through its own agent, and the disturbance in the middle of it."""
import json
import os
import re
import socket
import time
from collections.abc import Iterator

from children import Child, Failure, free_ports
from cluster import POLL_SECONDS, Cluster
from leader import LostLeader
from writer import Writer, Write

RANKS = 4
AGENT_SECONDS = 30.0
TRAINING_SECONDS = 180.0
PROGRESS_SECONDS = 2.0
# The leader is looked up this many steps before it is killed.
LOOK_UP_STEPS = 5


class Disturbance(LostLeader):
    """Kills the leader at a step, with a write in flight, and starts it again."""

    def __init__(self, cluster: Cluster, at_step: int, say):
        super().__init__(cluster, say)
        self.at_step = at_step

    def script(self, training: "Training") -> Iterator[None]:
        """Yields whenever it waits; the training's loop drives it."""
        while training.step < self.at_step - LOOK_UP_STEPS:
            yield
        yield from self.look_up()
        while training.step < self.at_step:
            yield
        training.writer.act_in_flight(self.kill)
        while not self.killed:
            yield
        self.say(f"killed node {self.node}, the leader of term {self.term}, with a write in flight")
        yield from self.recovery()


class Training:
    """Four ranks, a writer beside them, and what they left behind."""

    def __init__(self, cluster: Cluster, run: str, command: list[str], say):
        self.cluster, self.run, self.command, self.say = cluster, run, command, say
        self.children = cluster.children
        self.port = free_ports(1)[0]
        self.step = 0
        self.started = 0.0
        self.writes: list[Write] = []
        self.ranks: list[Child] = []
        self.writer: Writer | None = None
        # Processes that did not stop as they should when they were asked to.
        self.unclean: list[Child] = []

    def go(self, steps: int, disturbance: Disturbance | None) -> None:
        """Trains to the end."""
        agent = self._start_agent()
        self.writer = Writer(self.port)
        self.writer.start()
        self.ranks = [self._start_rank(rank) for rank in range(RANKS)]
        self.say(f"run {self.run}: agent on port {self.port}, {RANKS} ranks starting")
        self._watch(steps, disturbance.script(self) if disturbance else iter(()))
        self.writes = self.writer.stop()
        for rank in self.ranks:
            self.children.forget(rank)
        self.unclean = self.children.stop(agent)
        self.say(f"run {self.run}: {self.result(0)}")

    def result(self, rank: int) -> str:
        """The rank's last line: loss with all digits, and a digest of the weights."""
        found = re.search(r"^final (loss \S+ weights \S+)$", self.ranks[rank].text(), re.MULTILINE)
        if not found:
            raise Failure(f"rank {rank} printed no final loss:\n{self.ranks[rank].tail()}")
        return found[1]

    def notes(self, rank: int) -> list[dict]:
        """The store calls of a rank that were acknowledged, oldest first."""
        return [json.loads(line) for line in self._notes(rank).read_text().splitlines()]

    def longest_pause(self, rank: int) -> float:
        """The longest store call of a rank once training ran, in seconds."""
        return max(note["seconds"] for note in self.notes(rank) if note["at"] >= self.started)

    def _notes(self, rank: int):
        return self.children.folder / f"{self.run}-rank-{rank}.notes"

    def _start_agent(self) -> Child:
        agent = self.children.start(f"{self.run}-agent", [
            str(self.cluster.binaries / "holdfast-agent"), "serve", "--store", self.cluster.store,
            "--job", self.cluster.job, "--run", self.run, "--tcpstore", f"127.0.0.1:{self.port}"])
        deadline = time.monotonic() + AGENT_SECONDS
        while time.monotonic() < deadline:
            self.children.check()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return agent
            time.sleep(POLL_SECONDS)
        raise Failure(f"the agent does not listen on port {self.port} after {AGENT_SECONDS:.0f} s")

    def _start_rank(self, rank: int) -> Child:
        """What any launcher sets; the second line makes every rank a client of the store."""
        return self.children.start(
            f"{self.run}-rank-{rank}", [*self.command, "--notes", str(self._notes(rank))],
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port), RANK=str(rank), WORLD_SIZE=str(RANKS),
            TORCHELASTIC_USE_AGENT_STORE="True", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")

    def _watch(self, steps: int, script: Iterator[None]) -> None:
        """Until all ranks have ended and the script has, too."""
        deadline = time.monotonic() + TRAINING_SECONDS
        following = open(self.ranks[0].log, errors="replace")
        spoken, line, over = time.monotonic(), "", object()
        acting = True
        while acting or any(rank.exit_code is None for rank in self.ranks):
            acting = next(script, over) is not over
            self.children.check(may_end=tuple(self.ranks))
            if self.writer.error:
                raise Failure(f"a write beside the training failed: {self.writer.error!r}")
            for part in following:
                line = line + part
                if line.endswith("\n"):
                    self._follow(line)
                    line = ""
            if time.monotonic() - spoken >= PROGRESS_SECONDS:
                spoken = time.monotonic()
                state = {0: "ranks are starting", steps: "ranks are ending"}
                self.say(f"run {self.run}: {state.get(self.step, f'step {self.step} of {steps}')}")
            if time.monotonic() > deadline:
                raise Failure(f"run {self.run} is at step {self.step} of {steps} after {TRAINING_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _follow(self, line: str) -> None:
        found = re.match(r"step (\d+) of ", line)
        if found:
            self.step = int(found[1])
            self.started = self.started or time.monotonic()
