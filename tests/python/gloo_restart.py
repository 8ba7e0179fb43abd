"""A rank that sums in a process group of gloo, which is made in each attempt, until it is told to return.

    gloo_restart.py PROCESS WORLD
"""
import datetime
import sys
import threading

import torch
import torch.distributed as dist

import holdfast.torch

process, world = int(sys.argv[1]), int(sys.argv[2])
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
        "gloo",
        store=holdfast.torch.group_store(attempt.iteration),
        rank=attempt.rank,
        world_size=attempt.world_size,
        timeout=datetime.timedelta(seconds=100),
    )
    print("attempt", attempt.iteration, attempt.rank, attempt.world_size, flush=True)
    steps = 0
    while True:
        tensor = torch.tensor([1, int(asked.is_set())])
        dist.all_reduce(tensor)
        assert tensor[0] == attempt.world_size == dist.get_world_size()
        if tensor[1] == attempt.world_size:
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
