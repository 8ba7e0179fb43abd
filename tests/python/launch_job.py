"""A job for the tests of launchers: plain PyTorch that takes steps until it is told to finish.

Usage: launch_job.py FOLDER [INIT_METHOD]

INIT_METHOD is `env://`, an address, or `kept-master-addr`: then rank 0 binds MASTER_ADDR for a
purpose of its own, as some programs do, and the store is the one that HOLDFAST_TCPSTORE names. With
`second-store` it takes its steps in a store of its own at MASTER_PORT + 1, whose master is rank 0,
as NVRx's examples do; `second-store-without-libuv` has the other of PyTorch's two servers.
With `nccl` all ranks share a GPU. With `localhost` the program sets MASTER_ADDR to that.
With `accelerate` and `deepspeed` the group is formed as programs for these do; with `lightning` and
`ray` the program starts its two ranks itself, as those do. With `nvrx` each rank is wrapped as in the
basic example of NVRx's in-process restart: with the wrapper's store at MASTER_PORT + 1, and a store of
the group behind it for each iteration of the wrapper, which is the attempt then.

The driving test puts files into FOLDER: `finish` ends the job, `fail-N` ends its attempt N with
exit code 3, or with an exception in rank 1 under NVRx. Rank 0 decides for all, and prints a line for
each step.
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


def run_ray(folder: pathlib.Path) -> None:
    """Two workers of Ray Train, in a Ray that this program starts."""
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    beside, said = str(pathlib.Path(__file__).resolve().parent), f"/proc/{os.getpid()}/fd/1"

    def work() -> None:
        sys.path.insert(0, beside)
        import launch_job

        # Ray would put its own words before each line.
        os.dup2(os.open(said, os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False)
        launch_job.train(folder, dist.distributed_c10d._get_default_store())

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    TorchTrainer(work, scaling_config=ScalingConfig(num_workers=2), torch_config=TorchConfig(backend="gloo")).fit()
    ray.shutdown()


def run_lightning(folder: pathlib.Path) -> None:
    """Lightning's trainer starts the second rank itself."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def on_train_start(self) -> None:
            train(folder, dist.distributed_c10d._get_default_store())

        def training_step(self, batch, _):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 4)))


def run_nvrx(folder: pathlib.Path) -> None:
    """A rank that NVRx restarts within its process."""
    from nvidia_resiliency_ext.inprocess import CallWrapper, Wrapper

    # Gloo cannot be aborted: a rank is stopped once its own time-out has ended.
    short = datetime.timedelta(seconds=10)

    @Wrapper(store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 1})
    def work(call_wrapper: CallWrapper = None) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore(
            host_name=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]) + 2 + call_wrapper.iteration,
            world_size=world,
            is_master=rank == 0,
            multi_tenant=True,
            wait_for_workers=True,
            use_libuv=True,
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=short)
        train(folder, store, call_wrapper.iteration, raise_in_rank_1)
        dist.destroy_process_group()

    work()


def crash() -> None:
    os._exit(3)


def raise_in_rank_1() -> None:
    if dist.get_rank() == 1:
        raise RuntimeError("the fault that was ordered")
    dist.barrier()


def form_group(method: str) -> dist.Store:
    """Forms the process group; returns the store in which the steps are taken."""
    if method == "accelerate":
        import accelerate

        accelerate.Accelerator(cpu=True)
        return dist.distributed_c10d._get_default_store()
    if method == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", timeout=PATIENCE)
        return dist.distributed_c10d._get_default_store()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if method == "localhost":
        os.environ["MASTER_ADDR"], method = "localhost", "env://"
    if method == "nccl":
        # NCCL takes each rank for a host of its own.
        os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_NET="Socket", NCCL_NVLS_ENABLE="0")
        dist.init_process_group("nccl", timeout=PATIENCE)
        return dist.distributed_c10d._get_default_store()
    # env:// finds them by itself.
    place = {} if method == "env://" else {"rank": rank, "world_size": world}
    if method == "kept-master-addr":
        use_master_addr(rank, world)
        host, port = os.environ["HOLDFAST_TCPSTORE"].rsplit(":", 1)
        store = dist.TCPStore(host, int(port), is_master=False, timeout=PATIENCE)
        dist.init_process_group("gloo", store=store, timeout=PATIENCE, **place)
        return store
    if method.startswith("second-store"):
        dist.init_process_group("gloo", init_method="env://", timeout=PATIENCE)
        return dist.TCPStore(
            host_name=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]) + 1,
            world_size=world,
            is_master=rank == 0,
            timeout=PATIENCE,
            multi_tenant=True,
            wait_for_workers=True,
            use_libuv=method == "second-store",
        )
    dist.init_process_group("gloo", init_method=method, timeout=PATIENCE, **place)
    return dist.distributed_c10d._get_default_store()


def train(folder: pathlib.Path, store: dist.Store, attempt: int | None = None, fail=crash) -> list[torch.Tensor]:
    """Takes steps until it is told to finish. The tensors of its last calls are to be kept while the
    group is destroyed: until torch 2.8, Gloo's threads are joined with Python's lock held, and one of
    them hangs in giving back a tensor that nothing else holds (pytorch#154976)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if attempt is None:
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    step = 0
    while True:
        step += 1
        # Answered before the beat is set, for which the others wait before their next step.
        counted = store.add("steps", 1)
        store.set(f"beat/{rank}/{step}", str(attempt))
        if counted > world * step:
            raise AssertionError(f"{counted} steps were counted: keys of another attempt or job")
        orders = [float((folder / name).exists()) for name in (f"fail-{attempt}", "finish")]
        orders = torch.tensor(orders, device=device)
        dist.broadcast(orders, src=0)
        failing, finishing = orders.tolist()
        for other in range(world):
            if store.get(f"beat/{other}/{step}") != str(attempt).encode():
                raise AssertionError("a value of another attempt")
        if rank == 0:
            print(f"attempt {attempt} step {step}", flush=True)
        if failing:
            fail()
        if finishing:
            break
    # A group is formed late, through the store.
    group = dist.new_group(list(range(world)), timeout=PATIENCE)
    total = torch.ones(1, device=device)
    dist.all_reduce(total, group=group)
    if total.item() != world:
        raise AssertionError(f"{total.item()} of {world} ranks")
    dist.barrier()
    if rank == 0:
        print(f"trained {step} steps with {world} ranks in attempt {attempt}", flush=True)
    return [orders, total]


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    method = sys.argv[2] if len(sys.argv) > 2 else "env://"
    torch.set_num_threads(1)
    if method in LAUNCHED_HERE:
        LAUNCHED_HERE[method](folder)
        return
    _kept = train(folder, form_group(method))
    dist.destroy_process_group()


LAUNCHED_HERE = {"lightning": run_lightning, "ray": run_ray, "nvrx": run_nvrx}

if __name__ == "__main__":
    main()
