"""Ranks of a gloo job of which one never comes: what the others wait for.

Usage: missing_rank.py HOST PORT WORLD_SIZE MISSING

Starts every rank but MISSING as a process of its own with RANK in its
environment, and ends when it is told to.
"""

import os
import subprocess
import sys

RANK = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def main() -> None:
    host, port, world_size, missing = sys.argv[1:5]
    ranks = []
    for rank in range(int(world_size)):
        if rank == int(missing):
            continue
        environment = os.environ | {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(rank),
            "WORLD_SIZE": world_size,
        }
        process = subprocess.Popen([sys.executable, "-c", RANK], env=environment)
        ranks.append(process)
        print(f"rank {rank} pid {process.pid}", flush=True)
    sys.stdin.readline()
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()


main()
