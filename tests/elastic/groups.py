"""DistributedDataParallel in one process group, whose ranks are killed one after another."""
import pathlib
import time
from collections.abc import Iterator

from hosts import Failure, Host, Hosts, Program
from part import LOOK_UP_STEPS, Part, interleave

SCRIPT = pathlib.Path(__file__).resolve().parent / "group_train.py"
STEPS_BETWEEN = 20
LOADING_SECONDS = "0.02"
LINE = (r"^at (?P<at>[\d.]+) (?:(?P<formed>formed) generation (?P<generation>\d+) rank (?P<rank>\d+) of (?P<world>\d+) "
        r"step (?P<start>\d+)|(?P<told>generation \d+ of the process group is revoked)|(?P<stopped>stopped) at step \d+"
        r"|step (?P<step>\d+))")


def one_gpu(rank: int) -> dict[str, str]:
    """What lets ranks share a GPU: NCCL takes each for a host of its own, and uses sockets and few of the GPU's blocks."""
    return {"NCCL_HOSTID": f"host-{rank}", "NCCL_MAX_NCHANNELS": "2", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0",
            "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "0"}


class Death:
    """One rank killed, and what came of it: when the last of the survivors did what."""

    def __init__(self, rank: int, killed: float):
        self.rank, self.killed = rank, killed
        self.told: dict[str, float] = {}
        self.stopped: dict[str, float] = {}
        self.formed: dict[str, float] = {}
        self.first_step: dict[str, float] = {}

    def line(self) -> str:
        def last(moments: dict[str, float]) -> str:
            return f"{1000 * (max(moments.values()) - self.killed):6.0f} ms" if moments else "     -   "

        return (f"  rank {self.rank} killed: the last survivor told {last(self.told)}, stopped {last(self.stopped)}, "
                f"formed {last(self.formed)}, first step {last(self.first_step)}")


class Groups(Part):
    """Ranks are killed with SIGKILL, wherever they are, and the leader of the store with one of them."""

    def __init__(self, hosts: Hosts, python: str, say, name: str, ranks: int, kills: list[int], returns: bool, backend: str):
        super().__init__(hosts, python, say)
        self.backend = backend
        self.name, self.ranks, self.kills, self.returns = name, ranks, kills, returns
        self.title = "killed ranks come back" if returns else "the others go on without the killed rank"
        self.deaths: list[Death] = []
        self.worlds: dict[int, set[int]] = {}
        self.homes: dict[int, tuple[Host, Program]] = {}

    def reference(self, steps: int) -> str:
        """The same training, which nothing disturbs."""
        self.job, self.steps = f"{self.name}-reference", steps
        programs = {f"rank {rank}": self._start(rank, "reference") for rank in range(self.ranks)}
        self.programs = programs

        def script() -> Iterator[None]:
            while not self.ended():
                yield

        self.watch(script())
        self.forget()
        results = {self.finals(program)[-1] for program in programs.values()}
        if len(results) != 1:
            raise Failure(f"ranks that nothing disturbed came to {results}")
        self.programs = {}
        return results.pop()

    def go(self, steps: int) -> None:
        self.job, self.steps = self.name, steps
        self.programs = {f"rank {rank}": self._start(rank, "first") for rank in range(self.ranks)}
        self.watch(self._script())
        self.forget()
        self.results = {self.finals(program)[-1] for program in self.programs.values()}

    def _start(self, rank: int, life: str) -> Program:
        name = f"{self.job}-{rank}-{life}"
        host = self.hosts.add(f"host of {name}")
        last_call = "60" if self.returns else "0"
        program = host.start(name, [
            str(self.cluster.binaries / "holdfast-agent"), "run", "--store", self.cluster.store, "--job", self.job,
            "--run", "r", "--", self.python, "-u", str(SCRIPT), "--backend", self.backend,
            "--steps", str(self.steps), "--loading", LOADING_SECONDS,
            "--least", str(self.ranks - 1), "--last-call", last_call,
        ], RANK=str(rank), WORLD_SIZE=str(self.ranks), **(one_gpu(rank) if self.backend == "nccl" else {}))
        self.homes[rank] = (host, program)
        return program

    def _script(self) -> Iterator[None]:
        for number, rank in enumerate(self.kills):
            with_leader = number == 0
            if with_leader:
                yield from self.up_to(self.step + STEPS_BETWEEN)
                yield from self.leader.look_up()
            yield from self.up_to(self.step + LOOK_UP_STEPS)
            self._kill(rank, with_leader)
            survivors = self.ranks - 1
            if self.returns:
                self.programs[f"rank {rank}"] = self._start(rank, f"after-{number + 1}")
                survivors = self.ranks
            going_on = self._gone_on(survivors)
            yield from (interleave(self.leader.recovery(), going_on) if with_leader else going_on)
        yield from self.to_the_end()

    def _kill(self, rank: int, with_leader: bool) -> None:
        host, _ = self.homes[rank]
        if with_leader:
            self.leader.kill()
        death = Death(rank, time.monotonic())
        host.kill_program()
        self.deaths.append(death)
        beside = f", and node {self.leader.node}, the store's leader" if with_leader else ""
        self.note(f"killed with SIGKILL at step {self.step}: rank {rank}{beside}")
        self.programs.pop(f"rank {rank}")

    def _gone_on(self, ranks: int) -> Iterator[None]:
        """Until so many ranks train together again."""
        while len(self.deaths[-1].first_step) < ranks:
            self.listen()
            yield
        self.say(self.deaths[-1].line().strip())

    def listen(self) -> None:
        for name, program in self.programs.items():
            for _, match in program.listen(LINE):
                at, death = float(match["at"]), self.deaths[-1] if self.deaths else None
                if match["formed"]:
                    self.worlds.setdefault(int(match["generation"]), set()).add(int(match["world"]))
                if match["step"]:
                    self.step = max(self.step, int(match["step"]))
                if death is None or at < death.killed:
                    continue
                kind = next(kind for kind in ("formed", "told", "stopped", "step") if match[kind])
                if kind == "step":
                    if name in death.formed:
                        death.first_step.setdefault(name, at)
                else:
                    getattr(death, kind).setdefault(name, at)

    def check(self) -> list[str]:
        """What is wrong."""
        problems = [f"generation {generation} was formed with {worlds} ranks"
                    for generation, worlds in self.worlds.items() if len(worlds) != 1]
        if len(self.worlds) <= len(self.kills):
            problems.append(f"{len(self.kills)} deaths, and {len(self.worlds)} generations")
        if len(self.results) != 1:
            problems.append(f"the ranks ended with {self.results}")
        return problems

    def print_timeline(self, title: str) -> None:
        print(f"\nTimeline of {title}, from each kill")
        for death in self.deaths:
            print(death.line())
