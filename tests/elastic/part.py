"""What both parts of the demo have in common: the loop that watches, the timeline, the results."""
import re
import time
from collections.abc import Iterator

from hosts import Failure, Host, Hosts, Program
from cluster import POLL_SECONDS, Cluster
from leader import LostLeader

PART_SECONDS = 240.0
# The leader is looked up this many steps before it is killed.
LOOK_UP_STEPS = 10
FINAL = r"final loss (\S+) weights (\S+)$"


class Part:
    """Programs on hosts, one of which is killed together with the store's leader."""

    def __init__(self, hosts: Hosts, python: str, say):
        self.hosts, self.python, self.say = hosts, python, say
        self.cluster: Cluster = hosts.cluster
        self.programs: dict[str, Program] = {}
        self.leader = LostLeader(self.cluster, say)
        self.moments: list[tuple[float, str]] = []
        self.step = 0

    def note(self, what: str, at: float | None = None) -> None:
        """A line of the timeline."""
        self.moments.append((at or time.monotonic(), what))
        self.say(what)

    def kill_with_leader(self, host: Host) -> None:
        """Both in the same second, and in fact in the same few milliseconds: the leader was looked up before."""
        self.leader.kill()
        host.kill()
        took = 1000 * (time.monotonic() - self.leader.killed)
        self.note(f"killed with SIGKILL: {host.name} with all its processes, and node {self.leader.node}, "
                  f"the store's leader; {took:.0f} ms from the first to the last", self.leader.killed)

    def watch(self, script: Iterator[None]) -> None:
        """Until the script has come to its end."""
        deadline = time.monotonic() + PART_SECONDS
        for _ in script:
            self.cluster.children.check(may_end=tuple(program.child for program in self.programs.values()))
            if time.monotonic() > deadline:
                raise Failure(f"not done after {PART_SECONDS:.0f} s, at step {self.step}")
            time.sleep(POLL_SECONDS)

    def ended(self) -> bool:
        """All programs have ended; with 0, or `watch` would have said so."""
        return all(program.child.exit_code is not None for program in self.programs.values())

    def forget(self) -> None:
        """The programs have ended, as they should."""
        for program in self.programs.values():
            self.cluster.children.forget(program.child)

    def finals(self, program: Program) -> list[str]:
        """The last words of its ranks: the loss with all digits, and a digest of the weights."""
        found = re.findall(FINAL, program.child.text(), re.MULTILINE)
        if not found:
            raise Failure(f"{program.child.name} printed no final loss:\n{program.child.tail()}")
        return [" ".join(result) for result in found]

    def alone(self, host: Host, program: Program) -> str:
        """What a program comes to that nothing disturbs."""
        self.programs = {"reference": program}

        def script() -> Iterator[None]:
            while not self.ended():
                yield

        self.watch(script())
        results = set(self.finals(program))
        if len(results) != 1:
            raise Failure(f"ranks that nothing disturbed came to {results}")
        host.kill()
        self.programs.clear()
        return results.pop()

    def up_to(self, step: int) -> Iterator[None]:
        """Until the programs have come to this step."""
        while self.step < step:
            self.listen()
            yield

    def to_the_end(self) -> Iterator[None]:
        """Until all programs have ended, and everything that they said was heard."""
        while not self.ended():
            self.listen()
            yield
        self.listen()

    def listen(self) -> None:
        """Takes in what the programs said since."""
        raise NotImplementedError

    def print_timeline(self, title: str) -> None:
        """What happened, from the moment of the kill."""
        lost = self.leader
        self.moments += [
            (lost.elected, f"node {lost.new_leader} leads the store, in term {lost.new_term}"),
            (lost.restarted, f"node {lost.node} started again"),
            (lost.caught_up, f"node {lost.node} has caught up"),
        ]
        print(f"\nTimeline of {title}, from the kill")
        for moment, what in sorted(self.moments):
            print(f"  {moment - lost.killed:+7.2f} s  {what}")


def interleave(*scripts: Iterator[None]) -> Iterator[None]:
    """Several scripts side by side, until all have ended."""
    running = list(scripts)
    over = object()
    while running:
        running = [script for script in running if next(script, over) is not over]
        yield
