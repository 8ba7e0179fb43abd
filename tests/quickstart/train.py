"""An ordinary PyTorch job: data-parallel training with gloo, set up through env://.

Plain PyTorch. Nothing here knows what serves MASTER_ADDR:MASTER_PORT, and nothing retries.
Like real jobs it uses the store beside the training: a counter of finished steps, a
`monitored_barrier` now and then, and a `new_group` in the middle.

Each rank notes in a file every store call that was acknowledged and how long it took.
"""
import argparse
import datetime
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FEATURES, HIDDEN, BATCH = 16, 64, 32
STEPS_PER_STORE_CALL, STEPS_PER_BARRIER = 2, 10
# Stands for reading and preparing a batch.
LOADING_SECONDS = 0.02


class Notes:
    """Acknowledged store calls, one JSON line each; the clock is the same for all processes."""

    def __init__(self, path: str):
        self.file = open(path, "w", buffering=1)
        self.longest = 0.0

    def timed(self, operation: str, call, **what):
        started = time.monotonic()
        result = call()
        seconds = time.monotonic() - started
        self.longest = max(self.longest, seconds)
        line = {"operation": operation, "at": started, "seconds": seconds, **what}
        if operation == "add":
            line["result"] = result
        self.file.write(json.dumps(line) + "\n")
        return result


def batch(step: int, rank: int):
    """The same data for the same step and rank in every run."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x, torch.sin(x[:, :2].sum(dim=1, keepdim=True))


def use_store(notes: Notes, store, rank: int, step: int, loss: float) -> None:
    """A value and a counter. The answer to the add acknowledges the set before it, too."""
    key, value = f"loss/{rank}/{step}", repr(loss)

    def set_and_add():
        store.set(key, value)
        return store.add("steps", 1)

    notes.timed("add", set_and_add, key="steps", delta=1, set_key=key, set_value=value)


def train(steps: int, notes: Notes) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    half, loss_mean = None, torch.zeros(1)
    for step in range(1, steps + 1):
        time.sleep(LOADING_SECONDS)
        x, y = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_mean = loss.detach().clone().reshape(1)
        dist.all_reduce(loss_mean)
        loss_mean /= world
        if step % STEPS_PER_STORE_CALL == 0:
            use_store(notes, store, rank, step, loss_mean.item())
        if step % STEPS_PER_BARRIER == 0:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=120))
        if step == steps // 2:
            # The rendezvous of a new group goes through the store.
            groups = notes.timed("new_group", lambda: [
                dist.new_group(range(first, world, 2)) for first in range(min(2, world))])
            half = groups[rank % 2]
        if half is not None:
            dist.all_reduce(torch.ones(1), group=half)
        print(f"step {step} of {steps} loss {loss_mean.item():.6f}", flush=True)
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(bytes(parameter.detach().view(torch.uint8).flatten().tolist()))
    print(f"longest store call {1000 * notes.longest:.1f} ms", flush=True)
    print(f"final loss {loss_mean.item()!r} weights {weights.hexdigest()[:16]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--notes", default=os.devnull, help="file for the acknowledged store calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    notes = Notes(options.notes)
    notes.timed("init_process_group", lambda: dist.init_process_group(
        "gloo", timeout=datetime.timedelta(seconds=120)))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} joined through "
          f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", flush=True)
    train(options.steps, notes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
