"""Rank 0 sets a key, an all-reduce over gloo tells the others of it, and they ask for it.

Plain PyTorch, under `holdfast-agent run`. Fails if a rank does not find what was set before.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number: int, ranks: int, rounds: int) -> None:
    dist.init_process_group("gloo", rank=number, world_size=ranks)
    store = dist.distributed_c10d._get_default_store()
    for step in range(rounds):
        if number == 0:
            store.set("value", str(step))
            store.set(f"key-{step}", "there")
        dist.all_reduce(torch.ones(1))
        if number != 0:
            assert store.check([f"key-{step}"]), f"step {step}: not there"
            found = store.get("value")
            assert found == str(step).encode(), f"step {step}: {found!r}"
        dist.barrier()
        if number == 0 and step % 50 == 0:
            print(f"round {step}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    assert "MASTER_ADDR" in os.environ, "the agent says where it is"
    mp.spawn(rank, args=(arguments.ranks, arguments.rounds), nprocs=arguments.ranks)
    print("found all", flush=True)


if __name__ == "__main__":
    main()
