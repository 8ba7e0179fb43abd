"""Ranks of a DDP job on gloo of which one skips an all_reduce: the others hang in it.

Usage: skipped_reduce.py HOST PORT WORLD_SIZE SKIPS

Starts every rank as a process of its own with RANK in its environment. After a
few steps rank SKIPS leaves the gradients of one step to itself and computes on.
Ends when it is told to.
"""

import os
import subprocess
import sys

RANK = """
import contextlib, os, sys
import torch, torch.distributed as dist

torch.set_num_threads(1)
skips = os.environ["RANK"] == sys.argv[1]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(5):
    alone = skips and step == 4
    with model.no_sync() if alone else contextlib.nullcontext():
        model(torch.ones(2, 4)).sum().backward()
print("rank", os.environ["RANK"], "is through", flush=True)
while True:
    pass
"""


def main() -> None:
    host, port, world_size, skips = sys.argv[1:5]
    ranks = []
    for rank in range(int(world_size)):
        environment = os.environ | {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(rank),
            "WORLD_SIZE": world_size,
        }
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK, skips], env=environment))
    sys.stdin.readline()
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait()


main()
