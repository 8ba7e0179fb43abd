"""Data-parallel training with checkpoints, for any torchrun. Nothing here knows of Holdfast.

    torchrun … ddp_train.py FOLDER [--steps N] [--checkpoint-every N] [--loading SECONDS]

Restarted after a failure, it goes on from the last checkpoint. The data depends on step and rank
alone, so that as many ranks come to the same weights, disturbed or not.
"""
import argparse
import hashlib
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FEATURES, HIDDEN, BATCH = 16, 64, 32


def batch(step: int, rank: int):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x, torch.sin(x[:, :2].sum(dim=1, keepdim=True))


def save(path: pathlib.Path, state: dict) -> None:
    """A reader finds the old file or the new one, never a part."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="where the checkpoint is, the same for all ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--loading", type=float, default=0.05, help="seconds that stand for preparing a batch")
    options = parser.parse_args()
    checkpoint = options.folder / "checkpoint.pt"

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    # Looking for unused parameters keeps DDP from ordering its buckets anew after the first step:
    # gradients are added in one order always, and runs can be compared bit for bit.
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, loss = 0, torch.zeros(())
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    print(f"rank {rank} of {world} starts at step {step}", flush=True)

    while step < options.steps:
        time.sleep(options.loading)
        x, y = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step} of {options.steps} loss {loss.item():.6f}", flush=True)
            if step % options.checkpoint_every == 0:
                save(checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})

    mean = loss.detach().clone()
    dist.all_reduce(mean)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    digest = hashlib.sha256(str(weights.tolist()).encode()).hexdigest()[:16]
    print(f"rank {rank} final loss {mean.item() / world!r} weights {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
