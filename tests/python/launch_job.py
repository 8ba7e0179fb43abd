"""A job for the tests of launchers: plain PyTorch that takes steps until it is told to finish.

Usage: launch_job.py FOLDER [INIT_METHOD]

INIT_METHOD is `env://`, an address, or `kept-master-addr`: then rank 0 binds MASTER_ADDR for a
purpose of its own, as some programs do, and the store is the one that HOLDFAST_TCPSTORE names. With
`second-store` it takes its steps in a store of its own at MASTER_PORT + 1, whose master is rank 0,
as NVRx's examples do; `second-store-without-libuv` has the other of PyTorch's two servers.

Whoever drives it puts files into FOLDER: `finish` ends the job, `fail-N` ends its attempt N with
exit code 3. Rank 0 decides for all, and prints a line for each step.
"""
import datetime
import os
import pathlib
import socket
import sys
import time

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=100)


def use_master_addr(rank: int, world: int) -> None:
    """All ranks meet at a socket of rank 0 that is bound to MASTER_ADDR."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    deadline = time.monotonic() + PATIENCE.total_seconds()
    if rank == 0:
        with socket.create_server(address) as server:
            server.settimeout(PATIENCE.total_seconds())
            for _ in range(world - 1):
                server.accept()[0].sendall(b"met")
        return
    while True:
        try:
            with socket.create_connection(address, timeout=5) as peer:
                if peer.recv(3) == b"met":
                    return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    method = sys.argv[2] if len(sys.argv) > 2 else "env://"
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.set_num_threads(1)
    # env:// finds them by itself.
    place = {} if method == "env://" else {"rank": rank, "world_size": world}
    if method == "kept-master-addr":
        use_master_addr(rank, world)
        host, port = os.environ["HOLDFAST_TCPSTORE"].rsplit(":", 1)
        store = dist.TCPStore(host, int(port), is_master=False, timeout=PATIENCE)
        dist.init_process_group("gloo", store=store, timeout=PATIENCE, **place)
    elif method.startswith("second-store"):
        dist.init_process_group("gloo", init_method="env://", timeout=PATIENCE)
        store = dist.TCPStore(
            host_name=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]) + 1,
            world_size=world,
            is_master=rank == 0,
            timeout=PATIENCE,
            multi_tenant=True,
            wait_for_workers=True,
            use_libuv=method == "second-store",
        )
    else:
        dist.init_process_group("gloo", init_method=method, timeout=PATIENCE, **place)
        store = dist.distributed_c10d._get_default_store()
    step = 0
    while True:
        step += 1
        store.set(f"beat/{rank}/{step}", str(attempt))
        counted = store.add("steps", 1)
        if counted > world * step:
            raise AssertionError(f"{counted} steps were counted: keys of another attempt or job")
        orders = torch.tensor([float((folder / name).exists()) for name in (f"fail-{attempt}", "finish")])
        dist.broadcast(orders, src=0)
        failing, finishing = orders.tolist()
        for other in range(world):
            if store.get(f"beat/{other}/{step}") != str(attempt).encode():
                raise AssertionError("a value of another attempt")
        if rank == 0:
            print(f"attempt {attempt} step {step}", flush=True)
        if failing:
            # As a crash would.
            os._exit(3)
        if finishing:
            break
    # A group is formed late, through the store.
    group = dist.new_group(list(range(world)), timeout=PATIENCE)
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    if total.item() != world:
        raise AssertionError(f"{total.item()} of {world} ranks")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"trained {step} steps with {world} ranks in attempt {attempt}", flush=True)


if __name__ == "__main__":
    main()
