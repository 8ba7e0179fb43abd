"""A program in the shape of PyTorch's tutorial of DDP, which knows nothing of Holdfast: `setup` names the store's address, and
the ranks are started with `mp.spawn`.

Usage: ddp_tutorial.py FOLDER

Each rank prints its process before it looks for the others. They train until there is a file `finish` in FOLDER, and count
each step in the group's store; rank 0 prints a line for it.
"""
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2
# `setup` gives its group the default time, half an hour. What a failed test leaves ends before.
LIFE_SECONDS_MAX = 300
signal.alarm(LIFE_SECONDS_MAX)


def setup(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup() -> None:
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(inputs)))


def demo_basic(rank: int, world_size: int, folder: pathlib.Path) -> None:
    print(f"process {os.getpid()} is rank {rank}", flush=True)
    torch.set_num_threads(1)
    setup(rank, world_size)
    model = DDP(ToyModel())
    loss_of = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    store = dist.distributed_c10d._get_default_store()
    step, finishing = 0, torch.zeros(1)
    while not finishing.item():
        step += 1
        optimizer.zero_grad()
        loss_of(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()
        # Steps alone need no store.
        if store.add("steps", 1) > world_size * step:
            raise AssertionError("keys of another group")
        # Rank 0 decides for all.
        finishing.fill_(float((folder / "finish").exists()))
        dist.broadcast(finishing, src=0)
        if rank == 0:
            print(f"step {step}", flush=True)
    cleanup()


if __name__ == "__main__":
    mp.spawn(demo_basic, args=(WORLD, pathlib.Path(sys.argv[1])), nprocs=WORLD, join=True)
