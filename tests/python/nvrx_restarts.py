"""Measures NVRx's in-process restart: from a fault until all ranks that are left are in the wrapped function
again, and until their process group is formed. The ranks sleep meanwhile: gloo cannot be interrupted,
and its patience would be most of what is measured.

    nvrx_restarts.py raise|kill COUNT [HOST:PORT]

With an address the store is Holdfast's, whose agent serves there; without, it is NVRx's own, a TCPStore
in rank 0. Prints {"entered": [seconds, …], "formed": [seconds, …]}, a number for each of COUNT faults.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys

JOB = pathlib.Path(__file__).resolve().parent / "nvrx_job.py"
STEPS = 200
# Ranks that are left when all faults have happened.
LEFT = 3
SECONDS_MAX = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(kind: str, count: int, address: str | None) -> list[str]:
    """What each rank said."""
    world = LEFT + (count if kind == "kill" else 0)
    # Never rank 0, which hosts NVRx's own store.
    faulty = [world - 1 - n if kind == "kill" else 1 + n % (world - 1) for n in range(count)]
    faults = [f"{rank}:{kind}" for rank in faulty]
    host, _, port = (address or f"127.0.0.1:{free_port()}").rpartition(":")
    store = [] if address else ["--store", "torch"]
    ranks = []
    for rank in range(world):
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": host, "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        ranks.append(subprocess.Popen([sys.executable, "-u", JOB, str(STEPS), *faults, "--asleep", *store],
                                      env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    try:
        said = [rank.communicate(timeout=SECONDS_MAX)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, process in enumerate(ranks):
        killed = kind == "kill" and rank in faulty
        if process.returncode != (-9 if killed else 0):
            sys.exit(f"rank {rank} ended with {process.returncode}; it said:\n{said[rank]}")
    return said


def main() -> None:
    kind, count, address = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    faults, entered, formed = [], {}, {}
    for said in run(kind, count, address):
        for what, *fields in map(str.split, said.splitlines()):
            if what == "fault":
                faults.append(float(fields[0]))
            elif what in ("entered", "started"):
                times = entered if what == "entered" else formed
                times.setdefault(int(fields[0]), []).append(float(fields[-1]))
    faults.sort()
    if sorted(entered) != list(range(count + 1)):
        sys.exit(f"{count} faults made the iterations {sorted(entered)}")
    after = {"entered": entered, "formed": formed}
    print(json.dumps({name: [max(times[n + 1]) - fault for n, fault in enumerate(faults)]
                      for name, times in after.items()}))


if __name__ == "__main__":
    main()
