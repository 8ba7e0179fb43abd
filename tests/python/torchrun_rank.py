"""A rank under torchrun: gloo all-reduces over counted steps, the count kept in a file, until there is a
file named `stop` beside it; a line for each start and at the end.

    torchrun_rank.py FOLDER [SECONDS]       SECONDS: how long it takes to end when it is told to
"""
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

slowness = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


def end(*_):
    time.sleep(slowness)
    os._exit(1)


signal.signal(signal.SIGTERM, end)
checkpoint, stop = pathlib.Path(sys.argv[1], "step"), pathlib.Path(sys.argv[1], "stop")
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
# What rank 0 last wrote, for all alike.
step = torch.tensor([int(checkpoint.read_text()) if rank == 0 and checkpoint.exists() else 0])
dist.broadcast(step, 0)
print(f"started {rank} {world} {int(step)} {os.getpid()}", flush=True)
while True:
    # Rank 0 says whether to go on, so that all stop at the same step.
    go_on = torch.tensor([0 if rank == 0 and stop.exists() else 1])
    dist.all_reduce(go_on, dist.ReduceOp.MIN)
    if not int(go_on):
        break
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == world
    step += 1
    if rank == 0:
        checkpoint.with_suffix(".new").write_text(str(int(step)))
        checkpoint.with_suffix(".new").rename(checkpoint)
        print(f"step {int(step)}", flush=True)
    time.sleep(0.05)
print(f"finished {rank} {world} {int(step)}", flush=True)
dist.destroy_process_group()
