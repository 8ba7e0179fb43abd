"""A program that names its store itself, against its launcher's variables. Plain PyTorch, which knows nothing of Holdfast.

Usage: own_store.py FOLDER HOW PORT

It starts two ranks by itself, twice, one pair after the other, both at this port, as PyTorch's tutorial of DDP does with its
demos. HOW:

    variables   MASTER_ADDR and MASTER_PORT are set in the program
    tcp         init_method=tcp://localhost:PORT
    store       TCPStore("localhost", PORT, is_master=rank == 0)
    any         the same at port 0: rank 0 is told one, and tells the other rank

Those of `variables` train with DDP; its import takes long, so the others only add tensors up.

The first pair trains until there is a file `finish` in FOLDER. Rank 0 prints a line for each step.
"""
import datetime
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
PATIENCE = datetime.timedelta(seconds=float(os.environ.get("PATIENCE_SECONDS", "100")))
PLACE = {"timeout": PATIENCE, "world_size": WORLD}


def meet(how: str, port: int, rank: int, told) -> None:
    """Forms the process group."""
    if how == "variables":
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
        dist.init_process_group("gloo", rank=rank, **PLACE)
    elif how == "tcp":
        dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, **PLACE)
    else:
        if how == "any":
            port = told.get(timeout=PATIENCE.total_seconds()) if rank else 0
        # Rank 0 is not done with this before the other rank has come: so it tells it before.
        waits = how == "store"
        store = dist.TCPStore("localhost", port, WORLD, rank == 0, timeout=PATIENCE, wait_for_workers=waits)
        if not isinstance(store, dist.TCPStore) or store.host != "localhost":
            raise AssertionError(f"{store} at {store.host}")
        if how == "any" and rank == 0:
            told.put(store.port)
        elif how == "store" and store.port != port:
            raise AssertionError(f"port {store.port}")
        if store.add("came", 1) > WORLD:
            raise AssertionError("keys of the store that was at this port before")
        dist.init_process_group("gloo", store=store, rank=rank, **PLACE)


def training():
    """What takes a step of DDP."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def take_step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()

    return take_step


def train(rank: int, folder: pathlib.Path, how: str, port: int, pair: int, told) -> None:
    torch.set_num_threads(1)
    meet(how, port, rank, told)
    take_step = training() if how == "variables" else lambda: dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    step = 0
    while True:
        step += 1
        take_step()
        counted = store.add("steps", 1)
        if counted > WORLD * step:
            raise AssertionError(f"{counted} steps were counted: keys of another pair")
        finishing = torch.tensor([float(pair > 0 or (folder / "finish").exists())])
        dist.broadcast(finishing, src=0)
        if rank == 0:
            print(f"pair {pair} step {step}", flush=True)
        if finishing.item():
            break
    # A group is formed late, through the store.
    dist.barrier(group=dist.new_group([0, 1], timeout=PATIENCE))
    dist.destroy_process_group()


def main() -> None:
    folder, how, port = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for pair in range(2):
        told = mp.get_context("spawn").Queue()
        mp.spawn(train, (folder, how, port, pair, told), nprocs=WORLD)
    print("trained twice", flush=True)


if __name__ == "__main__":
    main()
