"""A rank of an elastic group over NCCL, whose communicators process LOST does not help to build: it is killed there.

    lost_connecting.py PROCESS WORLD LOST
"""
import os
import signal
import sys

import torch
import torch.distributed as dist

import holdfast.torch
from holdfast import _nccl

process, world, lost = (int(one) for one in sys.argv[1:])
if process == lost:
    _nccl.build_one = lambda group, device: os.kill(os.getpid(), signal.SIGKILL)

with holdfast.Job.join(process=process, world=world, members_min=1) as job, \
        holdfast.torch.ElasticGroup(job, "nccl") as group:
    # Without rank 0 of a group nobody gets the address at which its members meet.
    pair = group.subgroup(lambda world_size: [[0, 1]])
    for iteration in group.iterations():
        with iteration:
            total = torch.ones(1, device="cuda")
            dist.all_reduce(total, group=pair.group)
            group.raise_if_revoked()
            print("sums", int(total), "pid", os.getpid(), flush=True)
            break
    job.live_processes("done")
