"""A rank that sums in a process group, which is made in each attempt, until it is told to return.

    group_restart.py PROCESS WORLD BACKEND
"""
import datetime
import sys
import threading

import torch
import torch.distributed as dist

import holdfast.torch

process, world, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
device = "cuda" if backend == "nccl" else "cpu"
asked, held = threading.Event(), threading.Event()


def listen():
    for line in sys.stdin:
        held.set() if line.strip() == "hold" else asked.set()


@holdfast.restart(holdfast.RestartPolicy(admit_after=0.2), process=process, world=world)
def train(attempt):
    try:
        holdfast.torch.ElasticGroup(attempt.job)
    except holdfast.Refused as error:
        assert "use init_process_group" in str(error), error
    else:
        raise SystemExit("two of them begin iterations")
    dist.init_process_group(
        backend,
        store=holdfast.torch.group_store(attempt.iteration),
        rank=attempt.rank,
        world_size=attempt.world_size,
        timeout=datetime.timedelta(seconds=100),
    )
    print("attempt", attempt.iteration, attempt.rank, attempt.world_size, flush=True)
    steps = 0
    while True:
        tensor = torch.tensor([1, int(asked.is_set())], device=device)
        dist.all_reduce(tensor)
        ranks, told = tensor.tolist()
        # Raises if the collective was aborted: over NCCL it then ends with another sum.
        with attempt.uninterrupted():
            assert ranks == attempt.world_size == dist.get_world_size()
            if told == attempt.world_size:
                return steps
        steps += 1
        if steps == 10:
            print("sums", flush=True)
        if held.is_set():
            held.clear()
            print("holds", flush=True)
            threading.Event().wait()


threading.Thread(target=listen, daemon=True).start()
torch.set_num_threads(1)
print("returned", train(), dist.is_initialized(), flush=True)
