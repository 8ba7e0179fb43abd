"""A rank under NVRx's in-process Wrapper, with its store on Holdfast: gloo all-reduces, a line for each
start, and the faults that it is told.

    nvrx_job.py STEPS FAULT        FAULT: none, or RANK:STEP:raise, or RANK:STEP:kill
"""
import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.inprocess import CallWrapper, Wrapper
from nvidia_resiliency_ext.inprocess.abort import AbortTorchDistributed

import holdfast.nvrx

steps = int(sys.argv[1])
launched_as = int(os.environ["RANK"])
fault = None if sys.argv[2] == "none" else sys.argv[2].split(":")
seconds = lambda number: datetime.timedelta(seconds=number)


@Wrapper(
    store_factory=holdfast.nvrx.Store,
    abort=AbortTorchDistributed(),
    monitor_thread_interval=seconds(0.2),
    monitor_process_interval=seconds(0.2),
    heartbeat_interval=seconds(0.5),
    heartbeat_timeout=seconds(5),
    progress_watchdog_interval=seconds(0.2),
    soft_timeout=seconds(20),
    hard_timeout=seconds(40),
    last_call_wait=seconds(0.5),
    barrier_timeout=seconds(60),
    completion_timeout=seconds(60),
)
def train(call: CallWrapper = None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = holdfast.nvrx.group_store(call.iteration)
    # Gloo cannot be aborted: its own patience has to end before the wrapper's.
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=seconds(10))
    print("started", call.iteration, rank, world, flush=True)
    for step in range(steps):
        if fault and call.iteration == 0 and launched_as == int(fault[0]) and step == int(fault[1]):
            print("fault", flush=True)
            if fault[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the fault that was asked for")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world
    dist.destroy_process_group()
    return steps


assert holdfast.nvrx.Store().critical_ranks == ()
print("finished", train(), flush=True)
