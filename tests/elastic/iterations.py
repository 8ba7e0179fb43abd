"""Part b: a loop with holdfast.Job, whose ranks go on in their processes when one is lost."""
import json
import pathlib
from collections.abc import Iterator

from hosts import Failure, Host, Hosts, Program
from part import LOOK_UP_STEPS, Part, interleave

SCRIPT = pathlib.Path(__file__).resolve().parent / "job_train.py"
JOB, REFERENCE = "elastic", "elastic-reference"
KILL_AT = 30
LOADING_SECONDS = "0.03"
ITERATION = (r"^iteration (?P<number>\d+) rank (?P<rank>\d+) of (?P<world>\d+) members (?P<members>\S+) "
             r"step (?P<step>\d+)$")
ENDED = r"^iteration (?P<lost>\d+) ended at step (?P<at>\d+)"


class Iterations(Part):
    """Rank 0 dies with everything on its host and is started again. Nobody else is touched."""

    title = "a loop with holdfast.Job"
    reference_title = "one rank alone"

    def __init__(self, hosts: Hosts, python: str, say, ranks: int):
        super().__init__(hosts, python, say)
        self.ranks = ranks
        self.without = self.back = 0
        # Without it the training does not come to its end.
        self.seen_back = self.cluster.children.folder / "rank-0-is-back"

    def go(self, steps: int) -> None:
        self.steps = steps
        # What each life of a rank was told: (number, world size, members), in order.
        self.told: dict[str, list[tuple[int, int, str]]] = {}
        hosts = [self.hosts.add(f"host of rank {rank}") for rank in range(self.ranks)]
        self.first = hosts[0]
        self.programs = {f"rank {rank}": self._rank(host, rank, f"rank-{rank}") for rank, host in enumerate(hosts)}
        self.watch(self._script())
        self.forget()
        self.results = {self.finals(program)[-1] for program in self.programs.values()}

    def reference(self, steps: int) -> str:
        """One process alone, that does the parts of all."""
        self.steps = steps
        host = self.hosts.add("reference-rank")
        return self.alone(host, self._start(host, "rank-reference", REFERENCE, 0, 1, "--loading", "0"))

    def _rank(self, host: Host, rank: int, name: str) -> Program:
        return self._start(host, name, JOB, rank, self.ranks, "--loading", LOADING_SECONDS, "--until", str(self.seen_back))

    def _start(self, host: Host, name: str, job: str, rank: int, world: int, *arguments: str) -> Program:
        return host.start(name, [
            str(self.cluster.binaries / "holdfast-agent"), "run", "--store", self.cluster.store, "--job", job,
            "--run", "r", "--", self.python, "-u", str(SCRIPT), "--steps", str(self.steps), *arguments,
        ], RANK=str(rank), WORLD_SIZE=str(world))

    def _script(self) -> Iterator[None]:
        yield from self.up_to(KILL_AT - LOOK_UP_STEPS)
        yield from self.leader.look_up()
        yield from self.up_to(KILL_AT)
        self.kill_with_leader(self.first)
        self.programs["rank 0, again"] = self._rank(self.first, 0, "rank-0-again")
        del self.programs["rank 0"]
        self.note("rank 0 started again, with the same command")
        yield from interleave(self.leader.recovery(), self.to_the_end())
        self.note("all ranks have ended")

    def listen(self) -> None:
        for name, program in self.programs.items():
            for at, match in program.listen(f"{ITERATION}|{ENDED}"):
                if match["lost"]:
                    self.say(f"{name} sees at step {match['at']} that somebody is gone")
                    continue
                number, world, step = int(match["number"]), int(match["world"]), int(match["step"])
                self.told.setdefault(name, []).append((number, world, match["members"]))
                self.step = max(self.step, step)
                if not self.leader.killed:
                    continue
                if world == self.ranks - 1 and not self.without:
                    self.without = number
                    self.note(f"iteration {number}: the survivors agree that they are {world} and go on at step {step}", at)
                if name == "rank 0, again" and not self.back:
                    self.back = number
                    self.seen_back.touch()
                    self.note(f"iteration {number}: rank 0 is back, with {world} ranks at step {step}", at)

    def check(self) -> list[str]:
        """What is wrong."""
        problems = []
        agreed: dict[int, tuple[int, str]] = {}
        for name, told in self.told.items():
            numbers = [number for number, *_ in told]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                problems.append(f"{name} was told the iterations {numbers}, with gaps")
            for number, world, members in told:
                if agreed.setdefault(number, (world, members)) != (world, members):
                    problems.append(f"iteration {number} was told as {agreed[number]} and as {(world, members)}")
        lives = {name: {part.split(":")[1] for _, _, members in told for part in members.split(",")
                        if part.split(":")[0] == name.split()[1].rstrip(",")} for name, told in self.told.items()}
        for rank in range(1, self.ranks):
            if len(lives[f"rank {rank}"]) != 1:
                problems.append(f"rank {rank} had the lives {lives[f'rank {rank}']}: it was to have one")
        if not self.without:
            problems.append("no iteration went on without rank 0")
        if not self.back:
            problems.append("rank 0 never came back")
        elif agreed[self.back][0] != self.ranks:
            problems.append(f"iteration {self.back}, with rank 0 back, has {agreed[self.back]}")
        return problems + self._check_store(agreed)

    def _check_store(self, agreed: dict[int, tuple[int, str]]) -> list[str]:
        """What was told is what the store has."""
        problems = []
        answer = self.cluster.holdfast("-o", "json", "iterations", job=JOB)
        if answer.returncode != 0:
            raise Failure(f"`holdfast iterations` failed:\n{answer.stdout}{answer.stderr}")
        stretches = json.loads(answer.stdout)["advances"]
        found = {
            number: stretch["members"]
            for stretch in stretches
            for number in range(stretch["iteration"], stretch["last"] + 1)
        }
        for number, (world, _) in agreed.items():
            if found.get(number) != world:
                problems.append(f"iteration {number} was told with {world} members, the store has {found.get(number)}")
        return problems
