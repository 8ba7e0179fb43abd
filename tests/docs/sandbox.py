"""A machine of its own for one document, made of namespaces: what a reader types changes nothing here.

It has processes and a network of its own, with the addresses that the documents use, and writable
copies of /etc, /usr/local/bin, /var/lib and /tmp that are gone with it. Made again for each document.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import weakref
from typing import Optional

# Those of the hosts in the documents; all of them are this machine.
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
OVERLAID = ["/etc", "/usr/local/bin", "/var/lib", "/tmp"]
NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# The first process: bash waits for orphans, as an init does.
FIRST = ["bash", "-c", '"$@"; exit $?', "first"]
# Says to a process that it was started in a machine of its own, and where its empty folder is.
PLACE = "DOCS_PLACE"
PROBE_SECONDS = 60


def start(command: list[str], **options) -> subprocess.Popen:
    """Runs a Python program in such a machine, where it is to call `enter` first."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    # Not below /tmp, of which the machine has a copy.
    place = tempfile.mkdtemp(prefix="holdfast-docs-", dir="/var/tmp")
    process = subprocess.Popen(["unshare", *as_root, *NAMESPACES, *FIRST, sys.executable, *command],
                               stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
                               env={**os.environ, PLACE: place}, **options)
    # What is mounted there is so for that process alone.
    weakref.finalize(process, os.rmdir, place)
    return process


def run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise OSError(f"`{' '.join(command)}`: {done.stdout.strip()}")


def missing() -> Optional[str]:
    """Why such a machine cannot be made here; None if it can."""
    try:
        probe = start([str(pathlib.Path(__file__).resolve())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = probe.communicate(timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if probe.returncode == 0 else (output.strip().splitlines() or ["unshare fails"])[-1]


def enter() -> pathlib.Path:
    """Makes this process's namespaces such a machine; gives an empty folder on it."""
    # Nothing of this may be done to the machine itself, where the loopback is never down.
    if PLACE not in os.environ or is_up("lo"):
        raise OSError("not in a machine of its own: this is started by docs.py")
    run("ip", "link", "set", "lo", "up")
    for address in ADDRESSES:
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    run("hostname", "node-7")
    place = pathlib.Path(os.environ[PLACE])
    run("mount", "-t", "tmpfs", "tmpfs", str(place))
    for number, path in enumerate(OVERLAID):
        upper, work = place / f"upper-{number}", place / f"work-{number}"
        upper.mkdir()
        work.mkdir()
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    hosts = pathlib.Path("/etc/hosts")
    hosts.write_text(f"127.0.0.1 localhost\n{ADDRESSES[0]} node-7\n")
    home = place / "home"
    home.mkdir()
    return home


def is_up(interface: str) -> bool:
    shown = subprocess.run(["ip", "-oneline", "link", "show", interface], stdout=subprocess.PIPE, text=True, check=True)
    return "UP" in shown.stdout.split("<")[1].split(">")[0].split(",")


def of_host(number: int) -> list[str]:
    """In front of a command that is to run on this host: its /var/lib is its own."""
    own = pathlib.Path(os.environ[PLACE], f"host-{number}")
    own.mkdir(exist_ok=True)
    return ["unshare", "--mount", "bash", "-c", 'mount --bind "$1" /var/lib && shift && exec "$@"', "host", str(own)]


def die_with_parent() -> None:
    """Nothing outlives the runner."""
    ctypes.CDLL(None).prctl(1, 9)


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        print(error)
        sys.exit(1)
