#!/usr/bin/env python3
"""Brings docker-compose.yml up, kills the leader's container, and checks that nothing is lost.

Needs a Docker engine and Compose (either form): without them it says SKIPPED and why, and exits
with 0. Without the two base images, which come from a registry, the image is made of this machine's
own programs (--binaries DIR) by local_image.py, and only the Dockerfile is SKIPPED. NO_DOCKER=1
skips all of it on purpose. Everything it starts has a name of its own and is removed again.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "quickstart"))
from children import Failure, free_ports  # noqa: E402
from tcpstore_wire import Client  # noqa: E402

PULL_SECONDS, BUILD_SECONDS, HEALTHY_SECONDS, RECOVERY_SECONDS = 300, 3600, 120, 60
NODES = ("node1", "node2", "node3")
LOG_LINES = "40"
LOCAL_IMAGE = pathlib.Path(__file__).resolve().parent / "local_image.py"


class Skipped(Exception):
    """The test cannot run here."""


def output(command: list[str], seconds: float = 60.0, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=seconds, **options)


def compose_tool() -> list[str]:
    for tool in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(tool[0]) and output([*tool, "version"]).returncode == 0:
            return tool
    raise Skipped("there is neither `docker compose` nor `docker-compose`")


def check_engine() -> None:
    if os.environ.get("NO_DOCKER"):
        raise Skipped("NO_DOCKER is set")
    if not shutil.which("docker"):
        raise Skipped("docker is not installed")
    engine = output(["docker", "info", "--format", "{{.ServerVersion}}"])
    if engine.returncode != 0:
        raise Skipped(f"no Docker engine answers: {engine.stdout.strip().splitlines()[-1]}")


def check_base_images() -> None:
    dockerfile = (ROOT / "store" / "Dockerfile").read_text()
    for image in re.findall(r"^ARG \w+_IMAGE=(\S+)$", dockerfile, re.MULTILINE):
        if output(["docker", "image", "inspect", image]).returncode == 0:
            continue
        try:
            pulled = output(["docker", "pull", "--quiet", image], PULL_SECONDS)
            reason = pulled.stdout.strip().splitlines()[-1] if pulled.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"no answer within {PULL_SECONDS} s"
        if reason:
            raise Skipped(f"the base image {image} is not here and cannot be pulled ({reason}); "
                          "store/docs/deploy.md says how to supply it")


class Compose:
    """The compose file under a project name and ports of its own."""

    def __init__(self, tool: list[str]):
        self.project = f"holdfast-test-{os.getpid()}"
        self.command = [*tool, "--project-name", self.project, "--file", str(ROOT / "docker-compose.yml")]
        names = ["HOLDFAST_PORT_1", "HOLDFAST_PORT_2", "HOLDFAST_PORT_3", "HOLDFAST_PORT_AGENT"]
        self.ports = dict(zip(names, free_ports(len(names))))
        self.environment = os.environ | {name: str(port) for name, port in self.ports.items()}

    def __call__(self, *arguments: str, seconds: float = 120.0) -> str:
        done = output([*self.command, *arguments], seconds, env=self.environment, cwd=ROOT)
        if done.returncode != 0:
            raise Failure(f"compose {' '.join(arguments)} exited with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def show(self, *arguments: str, seconds: float) -> None:
        """For what takes long: its output is the progress."""
        done = subprocess.run([*self.command, *arguments], env=self.environment, cwd=ROOT, timeout=seconds)
        if done.returncode != 0:
            raise Failure(f"compose {' '.join(arguments)} exited with {done.returncode}")

    def container(self, service: str) -> str:
        """The service's container, running or not."""
        label = f"label=com.docker.compose.service={service}"
        project = f"label=com.docker.compose.project={self.project}"
        found = output(["docker", "ps", "--all", "--quiet", "--filter", label, "--filter", project])
        return found.stdout.split()[0]

    def holdfast(self, service: str, *arguments: str) -> str:
        """The command line inside a container."""
        return self("exec", "-T", service, "holdfast", *arguments).strip()

    def wait_healthy(self, *services: str) -> None:
        deadline = time.monotonic() + HEALTHY_SECONDS
        waiting = list(services)
        while waiting:
            if time.monotonic() > deadline:
                raise Failure(f"not healthy after {HEALTHY_SECONDS} s: {', '.join(waiting)}")
            time.sleep(0.5)
            state = "{{.State.Health.Status}}"
            waiting = [service for service in waiting if output(
                ["docker", "inspect", "--format", state, self.container(service)]).stdout.strip() != "healthy"]


def say(line: str) -> None:
    print(f"compose test: {line}", flush=True)


def expect(what: str, found, wanted) -> None:
    if found != wanted:
        raise Failure(f"{what}: found {found!r}, expected {wanted!r}")


def make_image(compose: Compose, binaries: pathlib.Path | None) -> None:
    try:
        check_base_images()
    except Skipped as reason:
        if binaries is None:
            raise
        say(f"SKIPPED: the Dockerfile: {reason}; the image is made of the programs in {binaries}")
        made = output([LOCAL_IMAGE, "--binaries", binaries], BUILD_SECONDS)
        if made.returncode != 0:
            raise Failure(f"local_image.py exited with {made.returncode}:\n{made.stdout[-4000:]}") from None
        return
    say("building the image (the first time takes a while)")
    compose.show("build", "node1", seconds=BUILD_SECONDS)


def try_it(compose: Compose) -> None:
    say("starting three nodes and an agent")
    compose.show("up", "--detach", seconds=HEALTHY_SECONDS)
    compose.wait_healthy(*NODES, "agent")
    user = compose("exec", "-T", "node1", "id", "-u").strip()
    expect("the user that a node runs as", user, "10001")

    say("writing through the command line and through the agent")
    compose.holdfast("node1", "kv", "put", "greeting", "hello")
    client = Client("127.0.0.1", compose.ports["HOLDFAST_PORT_AGENT"], timeout=RECOVERY_SECONDS)
    expect("the first add", client.add("count", 1), 1)

    status = json.loads(compose.holdfast("node1", "-o", "json", "status"))
    leader = f"node{status['leader']}"
    survivor = next(node for node in NODES if node != leader)
    say(f"killing the container of {leader}, the leader")
    output(["docker", "kill", "--signal", "KILL", compose.container(leader)])
    expect("an add on the same connection", client.add("count", 1), 2)
    expect("what was written before", compose.holdfast(survivor, "kv", "get", "greeting"), "hello")
    compose.holdfast(survivor, "kv", "put", "greeting", "still here")

    say(f"starting {leader} again")
    output(["docker", "start", compose.container(leader)])
    compose.wait_healthy(leader)
    expect("what was written meanwhile, read there", compose.holdfast(leader, "kv", "get", "greeting"), "still here")
    expect("an add after that", client.add("count", 1), 3)
    client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=pathlib.Path, help="programs for an image without a registry")
    binaries = parser.parse_args().binaries
    try:
        check_engine()
        compose, passed = Compose(compose_tool()), False
        make_image(compose, binaries)
    except Skipped as reason:
        print(f"SKIPPED: docker compose test: {reason}", flush=True)
        return 0
    except Failure as failure:
        print(f"\nFAILED: {failure}\n", flush=True)
        return 1
    try:
        try_it(compose)
        passed = True
        say("PASSED")
    except (Failure, subprocess.TimeoutExpired, OSError) as failure:
        print(f"\nFAILED: {failure}\n", flush=True)
        subprocess.run([*compose.command, "ps"], env=compose.environment, cwd=ROOT)
        subprocess.run([*compose.command, "logs", f"--tail={LOG_LINES}"], env=compose.environment, cwd=ROOT)
    finally:
        subprocess.run([*compose.command, "down", "--volumes", "--timeout", "15"], env=compose.environment, cwd=ROOT)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
