"""A rank of an elastic process group with a subgroup, which sums in both until it is told to stop.

    group_ranks.py PROCESS WORLD BACKEND
"""
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast.torch

process, world, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
device = "cuda" if backend == "nccl" else "cpu"
STEPS = 10
"""In an iteration; a rank that comes is in the next one."""

asked = {word: threading.Event() for word in ("lose", "stop")}
LOSE = 100
"""Added to what all agree on by a rank that is told to lose rank 3."""

losing = threading.Event()
"""All have agreed to."""


def listen():
    for line in sys.stdin:
        asked[line.strip()].set()


def pairs_of(world_size):
    return [[rank, rank + 1] for rank in range(0, world_size - 1, 2)]


def parallel(group):
    """One weight of which the gradient is a rank's input. Two passes, since the second one arranges gradients anew."""
    found = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False, device=device), process_group=group)
    for _ in range(2):
        mean_gradient(found, 1.0)
    return found


def mean_gradient(found, value):
    found.zero_grad()
    found(torch.tensor([[value]], device=device)).sum().backward()
    return kept(found.module.weight.grad)


def total(group, value=process):
    tensor = torch.tensor([value], device=device)
    dist.all_reduce(tensor, group=group)
    return kept(tensor)


def kept(tensor):
    """The value that a collective has left, unless it was aborted."""
    group.raise_if_revoked()
    return tensor.item()


def mean(values):
    return sum(values) / len(values)


def refused(call, words):
    try:
        call()
    except holdfast.Refused as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"not refused: {words}")


def check_new(iteration):
    """What holds after a generation was formed, once."""
    members = [one.process for one in iteration.members]
    assert (dist.get_rank(), dist.get_world_size()) == (iteration.rank, len(members))
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(len(members)))
    # Made by hand: it is of this generation, and is destroyed with it.
    evens = dist.new_group(list(range(0, len(members), 2)))
    if iteration.rank % 2 == 0:
        assert total(evens) == sum(members[::2])
    expected = next((pair for pair in pairs_of(len(members)) if iteration.rank in pair), ())
    assert pairs.ranks == tuple(expected), (pairs, expected)
    if not expected:
        assert pairs.group is dist.GroupMember.NON_GROUP_MEMBER
        return
    assert dist.get_rank(pairs.group) == expected.index(iteration.rank) and dist.get_world_size(pairs.group) == 2
    assert dist.get_process_group_ranks(pairs.group) == expected
    tensor = torch.tensor([process], device=device)
    dist.broadcast(tensor, src=expected[1], group=pairs.group)
    assert kept(tensor) == members[expected[1]]


def train(iteration):
    """Sums some steps: whether somebody was told to stop."""
    members = [one.process for one in iteration.members]
    in_pair = [members[rank] for rank in pairs.ranks]
    for _ in range(STEPS):
        if losing.is_set() and process == 3:
            # Its sockets stay open when it is killed.
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            print("holds", flush=True)
            threading.Event().wait()
        if losing.is_set() and process == 1:
            # It leaves its group without an error, while another rank waits for it in there.
            print("turns", flush=True)
            assert group.revoked(100) is not None
            return False
        if in_pair:
            assert total(pairs.group) == sum(in_pair)
            assert mean_gradient(wraps["pairs"], float(process)) == mean(in_pair)
        assert mean_gradient(wraps["all"], float(process)) == mean(members)
        found = total(None, asked["stop"].is_set() + LOSE * asked["lose"].is_set())
        if 0 < found < LOSE:
            return True
        if found >= LOSE:
            asked["lose"].clear()
            losing.set()
    if iteration.formed:
        print("sums", flush=True)
    return False


threading.Thread(target=listen, daemon=True).start()
torch.set_num_threads(1)
with holdfast.Job.join(process=process, world=world, members_min=1) as job, \
        holdfast.torch.ElasticGroup(job, backend, timeout=1000) as group:
    pairs = group.subgroup(pairs_of, name="pairs")
    refused(lambda: group.subgroup(pairs_of, name="pairs"), "another one")
    refused(lambda: group.subgroup([[0, 1]]), "a function of the number of ranks")
    for parts, words in (([[0, 4]], "rank 4 is not one of 4"), ([[0], [0]], "there twice"), ([0], "lists of ranks")):
        refused(lambda: holdfast.torch.Subgroup("wrong", lambda world_size: parts)._parts(4), words)
    assert total(None) == total(pairs.group) == process, "alone"
    wraps = {"all": parallel(None), "pairs": parallel(pairs.group)}
    print("in place" if group.reconfigures else "made again", flush=True)
    for iteration in group.iterations():
        with iteration:
            if iteration.formed:
                losing.clear()
                if not group.reconfigures:
                    wraps["all"] = parallel(None)
                    if pairs.ranks:
                        wraps["pairs"] = parallel(pairs.group)
                check_new(iteration)
                print("formed", group.generation, iteration.rank, iteration.world_size, *pairs.ranks, flush=True)
            if train(iteration):
                break
    refused(lambda: group.subgroup(pairs_of), "before the first iteration")
    job.live_processes("done")
print("ended", dist.is_initialized(), flush=True)
