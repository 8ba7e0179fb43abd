"""PyTorch's process groups over NCCL: how a process outlives one whose members are lost, and learns of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

logger = logging.getLogger("holdfast")

SETTINGS = {
    # The watchdog of a group ends the process when a peer is lost; torchrun sets 1, which does that, too.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # It puts a key into the store that asks all groups to end their processes, those that are made later, too.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # After an error it sleeps four times so many milliseconds, and who destroys the group waits for it.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""What PyTorch's own handling of errors is set to: it ends the process, where Holdfast forms the group anew. PyTorch reads
them when a group is made."""


LOOK_EVERY = 0.02
"""Seconds after which it is looked whether communicators that are being built are not wanted any more."""


def survive() -> None:
    """Makes the groups over NCCL that this process makes from now on leave it alive."""
    changed = {name: value for name, value in SETTINGS.items() if os.environ.get(name) != value}
    if changed:
        os.environ.update(changed)
        what = ", ".join(f"{name}={value}" for name, value in changed.items())
        logger.info("groups over NCCL must not end this process when a rank is lost, so these are set: %s", what)


def connect(groups: Iterable[dist.ProcessGroup], over: threading.Event, within: float) -> None:
    """Builds the communicators of groups, with all their members; otherwise their first collective would. In so many
    seconds, or until it is ``over``; raises if that is not enough.

    PyTorch cannot abort a communicator that is being built, and NCCL waits for a member that is lost for ever. So a
    thread builds it, and is left behind: nothing of the group can run before all members are there.
    """
    device, built = _device(), threading.Event()
    failed: list[Exception] = []

    def build() -> None:
        try:
            for group in groups:
                build_one(group, device)
                if over.is_set():
                    group.abort()
                    return
        except Exception as error:
            failed.append(error)
        finally:
            built.set()

    threading.Thread(target=build, name="holdfast-connect", daemon=True).start()
    ends = time.monotonic() + within
    while not built.wait(LOOK_EVERY) and not over.is_set() and time.monotonic() < ends:
        pass
    if failed:
        raise failed[0]
    if over.is_set():
        raise RuntimeError("NCCL was connecting the members when the generation ended")
    if not built.is_set():
        raise RuntimeError(f"NCCL has not connected all members within {within:.0f} s")


def build_one(group: dist.ProcessGroup, device: torch.device) -> None:
    """Builds the communicator of one group; waits for all its members."""
    import torch

    torch.cuda.set_device(device)
    backend = group._get_backend(device)
    if hasattr(backend, "eager_connect_single_device"):
        backend.eager_connect_single_device(device)


def abort(groups: Iterable[dist.ProcessGroup]) -> None:
    """Ends what runs in them. All at the same time: NCCL frees a communicator when nothing runs on its device any more, so
    the one that is aborted first would wait for the others."""

    def abort_one(group: dist.ProcessGroup) -> None:
        with contextlib.suppress(Exception):  # It has been aborted before.
            group.abort()

    threads = [threading.Thread(target=abort_one, args=(group,), name="holdfast-abort", daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def failure() -> Optional[str]:
    """What has failed in a group of this process, as its watchdog has seen it: no call raises that."""
    import torch.distributed as dist

    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(Exception):  # A group that has nothing on the device, or is being destroyed.
            error = group._get_backend(_device()).get_error()
            if error.name != "SUCCESS":
                return f"NCCL: {error.name}"
    return None


def _device() -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device())
