"""PyTorch's process groups, where ranks come and go: :class:`ElasticGroup`, or by hand::

    now = job.advance()
    torch.distributed.init_process_group("gloo", store=holdfast.torch.group_store(now.iteration),
                                         rank=now.rank, world_size=now.world_size)

Start the ranks under ``holdfast-agent run``: their store is then the agent on their own host, and no
rank hosts anything.
"""

from __future__ import annotations

import datetime
import os
from typing import Union

import torch.distributed

from . import _arguments as arguments
from ._arguments import U64_MAX
from ._elastic_group import ElasticGroup, ElasticIteration
from ._environment import warn_once
from ._errors import Refused
from ._subgroup import Subgroup

__all__ = ["ElasticGroup", "ElasticIteration", "Subgroup", "address", "group_store"]

TIMEOUT_DEFAULT = datetime.timedelta(seconds=300)


def address() -> tuple[str, int]:
    """Where the agent of this host serves TCPStore clients, as ``holdfast-agent run`` says it:
    ``HOLDFAST_TCPSTORE``, the first of several ports, else ``MASTER_ADDR`` and ``MASTER_PORT``."""
    warn_once()
    told = os.environ.get("HOLDFAST_TCPSTORE", "").partition(",")[0]
    host, _, port = told.rpartition(":")
    host, port = host.removeprefix("[").removesuffix("]"), port.partition("-")[0]
    if not told:
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        text = "no TCPStore address: start the ranks under `holdfast-agent run`, or set HOLDFAST_TCPSTORE=HOST:PORT"
        raise Refused(text, "invalid_request", False, "none")
    return host, int(port)


def group_store(name: Union[int, str], timeout: datetime.timedelta = TIMEOUT_DEFAULT) -> torch.distributed.Store:
    """A store for process groups that are made once, apart from those of all other names: in a store
    that was used before, ranks would find the addresses of ranks that are gone.

    ``name``: what the ranks of the group have in common, and no other group has, as the number of an
    iteration.
    """
    name = arguments.text("name", name) if isinstance(name, str) else arguments.whole("name", name, U64_MAX, " or a str")
    if not isinstance(timeout, datetime.timedelta):
        arguments.wrong_type("timeout", timeout, "a datetime.timedelta")
    host, port = address()
    store = torch.distributed.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    return torch.distributed.PrefixStore(f"holdfast.group.{name}", store)
