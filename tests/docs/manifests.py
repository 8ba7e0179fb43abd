#!/usr/bin/env python3
"""Runs what the systemd unit and the StatefulSet say, as systemd and a kubelet would.

Three times each on a machine of its own (sandbox.py): the unit's command with the settings file that
deploy.md shows, and the container's command with the variables, the secret, the volume and the probes
of store/docs/kubernetes.yaml. The three nodes must become ready, one that is killed must come back
with its volume, and SIGTERM must end them with exit code 0 in the time that the files give.
Where such a machine cannot be made, or a Python with PyYAML is missing, this says SKIPPED.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import blocks
import sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UNIT, DEPLOY = ROOT / "store/docs/holdfast-store.service", ROOT / "store/docs/deploy.md"
STATEFUL_SET = ROOT / "store/docs/kubernetes.yaml"
NODES = (1, 2, 3)
READY_SECONDS_MAX = 60


class Failure(Exception):
    """A file does not do what it says."""


def address(node: int) -> str:
    return f"10.0.0.{node}:21001"


def wait_ready(nodes: dict[int, subprocess.Popen], path: str = "/readyz") -> None:
    """As the probe asks."""
    deadline, missing = time.monotonic() + READY_SECONDS_MAX, set(nodes)
    while missing:
        for node, process in nodes.items():
            if process.poll() is not None:
                raise Failure(f"node {node} ended with {process.returncode}")
        asks = ["curl", "--silent", "--fail", "--max-time", "3", "--output", "/dev/null"]
        missing = {node for node in missing if subprocess.run([*asks, f"http://{address(node)}{path}"]).returncode != 0}
        if time.monotonic() > deadline:
            raise Failure(f"nodes {sorted(missing)} do not become ready")
        time.sleep(0.2)


def stop(nodes: dict[int, subprocess.Popen], seconds: float) -> None:
    """One after the other, as a rolling restart does."""
    for node, process in nodes.items():
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"node {node} has not ended {seconds:.0f} s after SIGTERM")
        if code != 0:
            raise Failure(f"node {node} ended with {code} at SIGTERM")


def unit_settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if line and not line.startswith(("#", "["))]
    return dict(line.split("=", 1) for line in lines)


def systemd(home: pathlib.Path) -> None:
    """The unit, with the file in deploy.md."""
    unit = unit_settings()
    program, *arguments = unit["ExecStart"].split()
    if shutil.which("systemd-analyze"):
        known = home / UNIT.name
        known.write_text(UNIT.read_text().replace(program, "/bin/true"))
        verified = subprocess.run(["systemd-analyze", "verify", str(known)], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        complaints = [line for line in verified.stdout.splitlines() if UNIT.name in line]
        if complaints:
            raise Failure("systemd-analyze verify: " + "\n".join(complaints))
    else:
        print("SKIPPED: systemd-analyze is not here: the unit's keys are not verified", flush=True)
    settings = next(block.text for block in blocks.read(DEPLOY.read_text()) if block.file == "store.toml")
    folder = pathlib.Path(arguments[-1]).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text("a-token-for-the-unit-only\n")
    (folder / "token").chmod(0o600)
    nodes = {}
    for node in NODES:
        own = settings.replace("node_id = 1", f"node_id = {node}").replace('"10.0.0.1:21001"', f'"{address(node)}"')
        config = folder / f"store-{node}.toml"
        config.write_text(own)
        command = [shutil.which(pathlib.Path(program).name), *arguments[:-1], str(config)]
        nodes[node] = subprocess.Popen([*sandbox.of_host(node), *command], preexec_fn=sandbox.die_with_parent)
    wait_ready(nodes)
    stop(nodes, float(unit["TimeoutStopSec"]))
    state = pathlib.Path(os.environ[sandbox.PLACE], "host-1", unit["StateDirectory"])
    if not any(state.iterdir()):
        raise Failure(f"nothing is in {state}: the settings name another folder than the unit's StateDirectory")


def moved(path: str) -> str:
    """A folder that only a pod's image has lies where this machine has a copy of its own."""
    return re.sub("^/data(?=/|$)", "/var/lib/data", path)


def stateful_set(home: pathlib.Path) -> None:
    """The pods of the set."""
    import yaml

    documents = list(yaml.safe_load_all(STATEFUL_SET.read_text()))
    the_set = next(document for document in documents if document["kind"] == "StatefulSet")
    name, service = the_set["metadata"]["name"], the_set["spec"]["serviceName"]
    pod = the_set["spec"]["template"]["spec"]
    container = pod["containers"][0]
    with open("/etc/hosts", "a") as hosts:
        hosts.writelines(f"10.0.0.{node} {name}-{node - 1}.{service}\n" for node in NODES)
    secret = home / "secret"
    secret.mkdir()
    (secret / "token").write_text("a-token-for-the-pods-only\n")
    (secret / "token").chmod(0o440)
    sources = {"token": secret}

    def start(node: int) -> subprocess.Popen:
        variables = {one["name"]: one.get("value", f"{name}-{node - 1}") for one in container["env"]}
        # All pods have port 21001 of this one machine: each listens at its own address.
        variables["HOLDFAST_LISTEN"] = variables["HOLDFAST_LISTEN"].replace("0.0.0.0", f"10.0.0.{node}")
        variables = {variable: moved(value) for variable, value in variables.items()}
        volume = home / f"volume-{node}"
        volume.mkdir(exist_ok=True)
        script = ["mount -t tmpfs tmpfs /run"]
        for mount in container["volumeMounts"]:
            source, path = sources.get(mount["name"], volume), moved(mount["mountPath"])
            script += [f"mkdir -p {path}", f"mount --bind {source} {path}"]
        script.append('exec "$@"')
        before = ["unshare", "--mount", "bash", "-ec", "\n".join(script), "pod"]
        environment = {"PATH": os.environ["PATH"], "HOME": "/", **variables}
        return subprocess.Popen([*before, *container["command"]], env=environment, preexec_fn=sandbox.die_with_parent)

    nodes = {node: start(node) for node in NODES[:the_set["spec"]["replicas"]]}
    wait_ready(nodes, container["livenessProbe"]["httpGet"]["path"])
    wait_ready(nodes, container["readinessProbe"]["httpGet"]["path"])
    nodes[2].kill()
    nodes[2].wait()
    nodes[2] = start(2)
    wait_ready(nodes)
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    store, token = variables["HOLDFAST_STORE"], str(secret / "token")
    status = subprocess.run(["holdfast", "--store", store, "--token-file", token, "kv", "put", "a", "b"])
    if status.returncode != 0:
        raise Failure("the nodes do not take a write")
    stop(nodes, float(pod["terminationGracePeriodSeconds"]))


def inside(binaries: pathlib.Path, name: str) -> int:
    home = sandbox.enter()
    os.environ["PATH"] = f"{binaries}:{os.environ['PATH']}"
    for variable in [variable for variable in os.environ if re.match("HOLDFAST_", variable)]:
        del os.environ[variable]
    try:
        {"systemd": systemd, "stateful-set": stateful_set}[name](home)
    except Failure as failure:
        print(f"{name}: FAILED: {failure}", flush=True)
        return 1
    except ModuleNotFoundError as missing:
        print(f"SKIPPED: {name}: {missing}", flush=True)
        return 0
    print(f"{name}: PASSED", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "debug",
                        help="folder of the binaries (default: %(default)s)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.binaries.resolve(), options.inside)
    why = sandbox.missing()
    if why:
        print(f"SKIPPED: manifests: a machine for them cannot be made here: {why}")
        return 0
    again = [__file__, "--binaries", str(options.binaries), "--inside"]
    failed = [name for name in ("systemd", "stateful-set") if sandbox.start([*again, name]).wait() != 0]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
