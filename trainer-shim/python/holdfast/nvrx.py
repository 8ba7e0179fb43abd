"""NVRx's in-process restart with its store on Holdfast. ::

    from nvidia_resiliency_ext.inprocess import Wrapper
    import holdfast.nvrx

    @Wrapper(store_factory=holdfast.nvrx.Store)
    def train(call=None):
        torch.distributed.init_process_group("gloo", store=holdfast.nvrx.group_store(call.iteration),
                                             rank=..., world_size=...)

Start the ranks under ``holdfast-agent run``: their store is then the agent on their own host. No rank
hosts anything, so there is none whose death ends the job, rank 0 included.

Written for nvidia-resiliency-ext 0.4.1.
"""

from __future__ import annotations

import datetime
from typing import Any, Optional

import torch.distributed
from nvidia_resiliency_ext.inprocess.store import PrefixStore, StoreMixin

from .torch import TIMEOUT_DEFAULT, address
from .torch import group_store as _group_store

# Torch 2.12 and later have a Store.barrier of their own, which hides the one that NVRx's rank
# assignments mean.
if PrefixStore.barrier is not StoreMixin.barrier:
    PrefixStore.barrier = StoreMixin.barrier


class Store(StoreMixin, torch.distributed.TCPStore):
    """A ``store_factory`` for :class:`nvidia_resiliency_ext.inprocess.Wrapper`.

    A client, in every rank: ``critical_ranks`` is empty. ``store_kwargs`` may hold ``host_name``,
    ``port`` and ``timeout``.
    """

    # The mixin comes first: its barrier is not torch's.

    def __init__(
        self,
        host_name: Optional[str] = None,
        port: Optional[int] = None,
        timeout: datetime.timedelta = TIMEOUT_DEFAULT,
        **others: Any,
    ) -> None:
        if host_name is None or port is None:
            known_host, known_port = address()
            host_name, port = host_name or known_host, port or known_port
        # NVRx counts its ranks itself: nobody here waits for a number of connections.
        torch.distributed.TCPStore.__init__(
            self, host_name, port, is_master=False, wait_for_workers=False, timeout=timeout, **others
        )

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """None: no rank hosts the store."""
        return ()


def group_store(iteration: int, timeout: datetime.timedelta = TIMEOUT_DEFAULT) -> torch.distributed.Store:
    """A store for the process groups of one iteration of the wrapped function, apart from those of
    all others: ranks of the one before would be found in it."""
    return _group_store(f"nvrx.{iteration}", timeout)
