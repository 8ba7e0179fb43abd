"""A rank under NVRx's in-process Wrapper: gloo all-reduces, a line for each start, and the faults that it
is told.

    nvrx_job.py STEPS FAULT… [--store torch] [--active N] [--asleep] [--patience GLOO SOFT HARD]

FAULT is RANK:KIND, of the rank as it was launched: the first one in the first iteration, the second in
the second, and so on, in the middle of the steps. The kinds:

    raise       an exception
    kill        SIGKILL
    livelock    runs, and makes no progress: the wrapped function can be interrupted
    freeze      blocked outside of Python: it cannot be
"""
import argparse
import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.inprocess import CallWrapper, Compose, Wrapper
from nvidia_resiliency_ext.inprocess.abort import AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks
from nvidia_resiliency_ext.inprocess.store import TCPStore

import holdfast.nvrx

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("faults", nargs="*")
parser.add_argument("--store", choices=("holdfast", "torch"), default="holdfast", help="torch: on rank 0, NVRx's own")
parser.add_argument("--active", type=int, help="so many ranks run, the others are spares")
parser.add_argument("--asleep", action="store_true", help="steps are pauses that can be interrupted")
parser.add_argument("--patience", type=float, nargs=3, default=(10, 20, 40), help="seconds of gloo, soft and hard")
options = parser.parse_args()
launched_as = int(os.environ["RANK"])
seconds = lambda number: datetime.timedelta(seconds=number)
# Gloo cannot be aborted: its own patience has to end before a rank is killed for it.
gloo, soft, hard = map(seconds, options.patience)


def fail(kind: str, call: CallWrapper) -> None:
    print("fault", time.monotonic(), flush=True)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "freeze":
        time.sleep(100 * hard.total_seconds())
    elif kind == "livelock":
        # A rank that has pinged once has to go on pinging.
        call.ping()
        while True:
            time.sleep(0.01)
    raise RuntimeError("the fault that was asked for")


@Wrapper(
    store_factory=TCPStore if options.store == "torch" else holdfast.nvrx.Store,
    abort=AbortTorchDistributed(),
    rank_assignment=Compose(MaxActiveWorldSize(options.active), ShiftRanks()),
    monitor_thread_interval=seconds(0.2),
    monitor_process_interval=seconds(0.2),
    heartbeat_interval=seconds(0.5),
    heartbeat_timeout=seconds(5),
    progress_watchdog_interval=seconds(0.2),
    soft_timeout=soft,
    hard_timeout=hard,
    last_call_wait=seconds(0.5),
    barrier_timeout=seconds(60),
    completion_timeout=seconds(60),
    termination_grace_time=seconds(1),
)
def train(call: CallWrapper = None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print("entered", call.iteration, time.monotonic(), flush=True)
    store = holdfast.nvrx.group_store(call.iteration)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=gloo)
    print("started", call.iteration, rank, world, time.monotonic(), flush=True)
    faulty, _, kind = (options.faults[call.iteration] if call.iteration < len(options.faults) else "-1:").partition(":")
    for step in range(options.steps):
        if launched_as == int(faulty) and step == options.steps // 2:
            fail(kind, call)
        if options.asleep:
            time.sleep(0.01)
            continue
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world
    dist.destroy_process_group()
    return options.steps


if options.store == "holdfast":
    assert holdfast.nvrx.Store().critical_ranks == ()
print("finished", train(), flush=True)
