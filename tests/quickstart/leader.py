"""The leader is killed, and comes back."""
import time
from collections.abc import Iterator

from children import Failure
from cluster import Cluster

RECOVERY_SECONDS = 60.0
# How long the killed node stays away after the others have a new leader.
AWAY_SECONDS = 0.5
# Writes go on, so the leader is a few entries ahead of what it was when it was asked.
ENTRIES_BEHIND = 4


class LostLeader:
    """Kills the leader, starts it again, and notes what happened when (monotonic clock)."""

    def __init__(self, cluster: Cluster, say):
        self.cluster, self.say = cluster, say
        self.node = self.term = self.new_leader = self.new_term = 0
        self.killed = self.elected = self.restarted = self.caught_up = 0.0

    def look_up(self) -> Iterator[None]:
        """Finds out whom to kill. Yields whenever it waits: a loaded machine may elect anew, undisturbed."""
        for status in self._statuses("the cluster has no leader in the middle of an undisturbed training,"):
            if status["leader"]:
                self.node, self.term = status["leader"], status["term"]
                return
            yield

    def kill(self) -> None:
        """SIGKILL, at once."""
        self.killed = time.monotonic()
        self.cluster.nodes[self.node].kill()

    def recovery(self) -> Iterator[None]:
        """A new leader, and the node's return. Yields whenever it waits."""
        self.cluster.bury(self.node)
        yield from self._election()
        away = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < away:
            yield
        yield from self._return()

    def _election(self) -> Iterator[None]:
        for status in self._statuses("there is no new leader"):
            yield
            if status["leader"] not in (None, self.node) and status["term"] > self.term:
                self.elected = time.monotonic()
                self.new_leader, self.new_term = status["leader"], status["term"]
                self.say(f"node {self.new_leader} leads in term {self.new_term}")
                return

    def _return(self) -> Iterator[None]:
        self.cluster.start(self.node)
        self.restarted = time.monotonic()
        self.say(f"started node {self.node} again")
        for status in self._statuses(f"node {self.node} has not caught up"):
            yield
            nodes = {node["id"]: node for node in status["nodes"]}
            mine, leaders = nodes[self.node]["applied"], nodes.get(status["leader"], {}).get("applied")
            if mine and leaders and mine >= leaders - ENTRIES_BEHIND:
                self.caught_up = time.monotonic()
                self.say(f"node {self.node} is back and has caught up")
                return

    def _statuses(self, what: str) -> Iterator[dict]:
        """Status documents until the caller has seen enough."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            status = self.cluster.status()
            if status:
                yield status
        raise Failure(f"{what} after {RECOVERY_SECONDS:.0f} s; `holdfast status` says:\n"
                      f"{self.cluster.holdfast('status').stdout}")
