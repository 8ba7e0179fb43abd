"""Part a: an unmodified DDP script under two torchruns whose rendezvous is on Holdfast."""
import pathlib
import re
from collections.abc import Iterator

from hosts import Host, Hosts, Program
from part import LOOK_UP_STEPS, Part, interleave

SCRIPT = pathlib.Path(__file__).resolve().parent / "ddp_train.py"
NODES = 2
STEPS_PER_CHECKPOINT = 20
# Between two checkpoints, so that some steps are made twice.
KILL_AT = STEPS_PER_CHECKPOINT + STEPS_PER_CHECKPOINT // 2
HEARD = (r"rank (?P<rank>\d+) of (?P<world>\d+) starts at step (?P<start>\d+)|^step (?P<step>\d+) of |"
         r"(?P<lost>RuntimeError|DistBackendError)|namespace (?P<met>rendezvous-\d+) ")


class Torchruns(Part):
    """Node 0 dies with everything on it and is started again. Nobody else is touched."""

    title = "an unmodified DDP script under two torchruns"
    reference_title = "under one torchrun without Holdfast"

    def __init__(self, hosts: Hosts, python: str, say, ranks: int):
        super().__init__(hosts, python, say)
        self.ranks, self.ranks_per_node = ranks, ranks // NODES
        self.resumed_at: set[int] = set()
        self.said: set[str] = set()

    def go(self, steps: int) -> None:
        self.steps = steps
        self.folder = self.cluster.children.folder / "checkpoints"
        self.folder.mkdir()
        self.first = self.hosts.add("host 0")
        self.programs = {"node 0": self._torchrun(self.first, "torchrun-0"),
                         "node 1": self._torchrun(self.hosts.add("host 1"), "torchrun-1")}
        self.watch(self._script())
        self.results = {result for program in self.programs.values() for result in self.finals(program)}
        self.forget()
        self.ranks_ended = sum(len(self.finals(program)) for program in self.programs.values())

    def reference(self, steps: int) -> str:
        """The same script under PyTorch's own torchrun, without Holdfast, undisturbed."""
        host = self.hosts.add("reference-torchrun")
        folder = host.folder / "checkpoints"
        folder.mkdir()
        command = [self.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}",
                   str(SCRIPT), str(folder), *self._arguments(steps), "--loading", "0"]
        return self.alone(host, host.start("torchrun-reference", command))

    def _torchrun(self, host: Host, name: str) -> Program:
        return host.start(name, [
            self.python, "-u", "-m", "torch.distributed.run", "--rdzv-backend=holdfast",
            f"--rdzv-endpoint={self.cluster.store}", "--rdzv-id=ddp", f"--nnodes={NODES}",
            f"--nproc-per-node={self.ranks_per_node}", "--max-restarts=3",
            str(SCRIPT), str(self.folder), *self._arguments(self.steps)])

    def _arguments(self, steps: int) -> list[str]:
        return ["--steps", str(steps), "--checkpoint-every", str(STEPS_PER_CHECKPOINT)]

    def _script(self) -> Iterator[None]:
        yield from self.up_to(KILL_AT - LOOK_UP_STEPS)
        yield from self.leader.look_up()
        yield from self.up_to(KILL_AT)
        self.kill_with_leader(self.first)
        # What was said before the end, too.
        self.listen()
        self.killed_at_step = self.step
        self.programs["node 0"] = self._torchrun(self.first, "torchrun-0-again")
        self.note("torchrun of node 0 started again, with the same command")
        yield from interleave(self.leader.recovery(), self.to_the_end())
        self.note("all ranks have ended")

    def listen(self) -> None:
        for name, program in self.programs.items():
            for at, match in program.listen(HEARD):
                if match["step"]:
                    self.step = int(match["step"])
                elif not self.leader.killed:
                    continue
                elif match["lost"]:
                    self._once(f"{name}: its ranks fail, as their peers are gone; torchrun starts them again", at)
                elif match["met"]:
                    self._once(f"{name}: both torchruns have met again, in {match['met']}, and start ranks", at)
                else:
                    self.resumed_at.add(int(match["start"]))
                    self._once(f"training goes on from the checkpoint of step {match['start']}, "
                               f"with {match['world']} ranks", at)

    def _once(self, what: str, at: float) -> None:
        """What each rank of a node says, and what both nodes say, is one thing that happened."""
        kind = what.partition(":")[2] or what
        if kind not in self.said:
            self.said.add(kind)
            self.note(what, at)

    def check(self) -> list[str]:
        """What is wrong."""
        problems = []
        # A step is said before its checkpoint is written, and rank 0 of a node that lives may end the step that it is in.
        said = range(self.killed_at_step - 1, self.killed_at_step + 2)
        checkpoints = {step // STEPS_PER_CHECKPOINT * STEPS_PER_CHECKPOINT for step in said}
        if not self.resumed_at <= checkpoints or len(self.resumed_at) != 1:
            problems.append(f"ranks went on from steps {sorted(self.resumed_at)}, killed at step {self.killed_at_step}")
        if self.ranks_ended != self.ranks:
            problems.append(f"{self.ranks_ended} ranks came to the end, of {self.ranks}")
        starts = len(re.findall(r"starts at step \d+$", self.programs["node 1"].child.text(), re.MULTILINE))
        if starts != 2 * self.ranks_per_node:
            problems.append(f"torchrun of node 1 started ranks {starts} times, not twice {self.ranks_per_node}")
        return problems
