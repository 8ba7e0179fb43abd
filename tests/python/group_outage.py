"""A rank of an elastic group that loses the store while it waits for the next iteration.

    group_outage.py PROCESS WORLD
"""
import sys

import torch
import torch.distributed as dist

import holdfast.torch

process, world = int(sys.argv[1]), int(sys.argv[2])


def total():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return int(tensor)


with holdfast.Job.join(process=process, world=world, members_min=world) as job, \
        holdfast.torch.ElasticGroup(job, "gloo") as group:
    group.advance()
    print("formed", group.generation, total(), flush=True)
    if process == 0:
        # A call that is void changes nothing: the others are not there.
        try:
            group.advance(timeout=0.3)
        except holdfast.HoldfastError as error:
            print("void", error.outcome, group.generation, flush=True)
        group.raise_if_revoked()
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        print("advances", flush=True)
        try:
            group.advance(timeout=float(line))
            print("formed", group.generation, total(), flush=True)
        except holdfast.StoreLost as error:
            print("lost", error.outcome, group.generation, flush=True)
            try:
                group.raise_if_revoked()
            except holdfast.Revoked:
                print("over", flush=True)
            try:
                print("total", total(), flush=True)
            except RuntimeError:
                print("no total", flush=True)
