"""An ordinary env:// job: data-parallel training with gloo on two ranks of this machine.

Plain PyTorch. Uses the store as real jobs do: a counter and a value each step, a
`monitored_barrier`, a `new_group`. Takes steps until `finish` arrives on standard input, and forms
the group when `group` does, so that the driving test can disturb the store meanwhile.
"""
import datetime
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
# Threads of each rank that use the store beside the training, as watchdogs do.
WATCHDOGS = 4
PATIENCE = datetime.timedelta(seconds=120)


class Watchdogs:
    """Beats on connections of their own; what was answered is counted."""

    def __init__(self, rank: int):
        self.stop = threading.Event()
        self.answered = [0] * WATCHDOGS
        self.threads = [threading.Thread(target=self.beat, args=(rank, n)) for n in range(WATCHDOGS)]
        for thread in self.threads:
            thread.start()

    def beat(self, rank: int, n: int) -> None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, None, False, timeout=PATIENCE)
        while not self.stop.is_set():
            answered = store.add(f"beats/{rank}/{n}", 1)
            self.answered[n] += 1
            if answered != self.answered[n]:
                # An exception would end this thread alone.
                print(f"beat {self.answered[n]} was answered {answered}", flush=True)
                os._exit(1)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def train(rank: int, wanted: dict) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    store = dist.distributed_c10d._get_default_store()
    watchdogs = Watchdogs(rank)
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group, step = None, 0
    while True:
        step += 1
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.set(f"loss/{rank}/{step}", repr(loss.item()))
        store.add("steps", 1)
        if step % 5 == 0:
            dist.monitored_barrier(timeout=PATIENCE)
        # Rank 0 decides for all.
        orders = torch.tensor([float(wanted[order].is_set()) for order in ("group", "finish")])
        dist.broadcast(orders, src=0)
        grouping, ending = orders.tolist()
        if grouping and group is None:
            group = dist.new_group(list(range(WORLD)), timeout=PATIENCE)
            if rank == 0:
                print("grouped", flush=True)
        if group is not None:
            dist.all_reduce(torch.ones(1), group=group)
        if rank == 0:
            print(f"step {step}", flush=True)
        if ending:
            break
    watchdogs.end()
    dist.monitored_barrier(timeout=PATIENCE)
    total = store.add("steps", 0)
    if total != WORLD * step:
        raise AssertionError(f"{total} steps were counted and {WORLD * step} made")
    for other in range(WORLD):
        for n in range(1, step + 1):
            store.get(f"loss/{other}/{n}")
    dist.monitored_barrier(timeout=PATIENCE)
    dist.destroy_process_group()
    if rank == 0:
        print(f"trained {step} steps", flush=True)


def main() -> None:
    # Forked, so that PyTorch is imported once.
    context = multiprocessing.get_context("fork")
    wanted = {order: context.Event() for order in ("group", "finish")}
    ranks = [context.Process(target=train, args=(rank, wanted)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    threading.Thread(target=obey, args=(wanted,), daemon=True).start()
    # The first rank to end badly ends the job: the others would wait for it.
    # Asked once: nobody may be left to wait for when it is asked again.
    while alive := [rank.sentinel for rank in ranks if rank.is_alive()]:
        multiprocessing.connection.wait(alive)
        if any(rank.exitcode for rank in ranks):
            for rank in ranks:
                rank.kill()
    sys.exit(any(rank.exitcode for rank in ranks))


def obey(wanted: dict) -> None:
    for line in sys.stdin:
        wanted[line.strip()].set()


if __name__ == "__main__":
    main()
