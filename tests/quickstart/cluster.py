"""Three store nodes and the `holdfast` command line, as the quickstart drives them."""
import json
import pathlib
import subprocess
import time
from collections.abc import Callable

from children import Child, Children, Failure, free_ports

NODES = 3
START_SECONDS = 60.0
COMMAND_SECONDS = 30.0
# How long a node may take to apply what the others have.
CATCH_UP_SECONDS = 30.0
POLL_SECONDS = 0.02


class Cluster:
    """The nodes by their ids."""

    def __init__(self, binaries: pathlib.Path, children: Children, job: str):
        self.binaries, self.children, self.job = binaries, children, job
        ports = free_ports(NODES)
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in enumerate(ports, 1)}
        self.nodes: dict[int, Child] = {}

    @property
    def store(self) -> str:
        """The value of `--store`."""
        return ",".join(self.addresses.values())

    def start(self, node: int) -> None:
        members = ",".join(f"{id}={address}" for id, address in self.addresses.items())
        self.nodes[node] = self.children.start(f"node-{node}", [
            str(self.binaries / "holdfast-store"), "serve", "--node-id", str(node),
            "--data-dir", str(self.children.folder / f"data-{node}"),
            "--listen", self.addresses[node], "--initial-cluster", members])

    def bury(self, node: int) -> None:
        """The node was killed on purpose."""
        self.children.forget(self.nodes.pop(node))

    def holdfast(self, *arguments: str, store: str | None = None, job: str | None = None) -> subprocess.CompletedProcess:
        command = [str(self.binaries / "holdfast"), "--store", store or self.store, "--job", job or self.job]
        return subprocess.run([*command, *arguments], capture_output=True, text=True,
                              timeout=COMMAND_SECONDS)

    def status(self) -> dict | None:
        """The status document; none while no node answers."""
        answer = self.holdfast("-o", "json", "--timeout", "2s", "status")
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def leader(self) -> int | None:
        status = self.status()
        return status["leader"] if status else None

    def wait_for_leader(self) -> dict:
        """The first status that names a leader with every node in reach."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.children.check()
            status = self.status()
            if status and status["leader"] and \
                    all(node["role"] != "unreachable" for node in status["nodes"]):
                return status
            time.sleep(POLL_SECONDS)
        raise Failure(f"the cluster has no leader after {START_SECONDS:.0f} s; `holdfast status` said:\n"
                      f"{self.holdfast('status')}")

    def entries(self, run: str, only_from: int | None = None) -> dict[str, str]:
        """All keys of a run with their values; with `only_from` what that one node has."""
        stale = ["--stale"] if only_from else []
        answer = self.holdfast("--run", run, "-o", "json", "kv", "list", *stale,
                               store=self.addresses[only_from] if only_from else None)
        if answer.returncode != 0:
            raise Failure(f"`holdfast kv list` of run {run} failed:\n{answer.stdout}{answer.stderr}")
        return {entry["key"]: entry["value"] for entry in json.loads(answer.stdout)["entries"]}

    def checked(self, run: str, node: int | None, check: Callable[[dict[str, str], str], list[str]]) -> list[str]:
        """The problems that a check finds in the keys of a run: in the cluster's, or in those of a node that was
        killed. Such a node is read as far as it is, and may take a while to have all of them."""
        if node is None:
            return check(self.entries(run), "the cluster")
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while True:
            problems = check(self.entries(run, only_from=node), f"node {node}, killed and restarted,")
            if not problems or time.monotonic() > deadline:
                return problems
            time.sleep(POLL_SECONDS)
