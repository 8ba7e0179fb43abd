"""torchrun's rendezvous, and its workers' store, on Holdfast::

    torchrun --rdzv-backend=holdfast --rdzv-endpoint=10.0.0.1:21001,10.0.0.2:21001,10.0.0.3:21001 \\
        --rdzv-id=try-7 --nnodes=1:4 --nproc-per-node=8 train.py

Found by torchrun (torch 2.7 and later) through the entry point ``torchrun.handlers``. Any node may
die, the first one included: those that are left meet again.
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import socket
import time
from typing import Any, Optional

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ._agent import Agent, AgentError
from ._errors import HoldfastError, RoundTimeout
from ._job import Job
from ._types import Live

log = logging.getLogger(__name__)

BACKEND = "holdfast"

NODES = "nodes"
"""The round in which nodes meet."""

SUFFIX = ".nodes"
"""Nodes are a job of their own beside that of their workers: a round of the workers' own does not
wait for torchrun."""

CLOSED = "closed"
"""The key that says that a rendezvous is over."""

CONFIG = {"timeout": 900.0, "join_timeout": 600.0, "last_call_timeout": 5.0, "ttl": 5.0}
"""What ``--rdzv-conf`` may set, in seconds, and the defaults. ``timeout``: how long the store may be
silent; ``join_timeout``: how long to wait for the smallest number of nodes; ``last_call_timeout``: how
long to wait for more; ``ttl``: how long a node that is gone counts as alive."""


def entry_point() -> Any:
    """What torchrun asks the entry point for: the maker of handlers."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler with torchrun's parameters."""
    return Handler(params)


class Handler(RendezvousHandler):
    """One node of a torchrun job: a process of the job ``NAME.nodes``, its number given by the
    cluster.

    A rendezvous is a round that closes with the largest number of nodes, or some time after the
    smallest. Its generation names a namespace of its own for the store of torchrun and of its
    workers, served by the agent on this host: nothing of a former attempt is ever read.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self._run_id = params.run_id
        self._min, self._max = params.min_nodes, params.max_nodes
        self._config = {name: float(params.get(name, default)) for name, default in CONFIG.items()}
        store = params.endpoint or os.environ.get("HOLDFAST_STORE", "")
        if not store:
            raise ValueError("no store: give --rdzv-endpoint=HOST:PORT,… of its nodes, or set HOLDFAST_STORE")
        self._host = params.local_addr or socket.gethostname()
        name = _name(params.run_id)
        try:
            self._agent = Agent.find(store, os.environ.get("HOLDFAST_JOB") or name, os.environ.get("HOLDFAST_RUN") or name)
        except AgentError as error:
            raise RendezvousConnectionError(str(error)) from error
        self._store_list = store
        self._job: Optional[Job] = None
        self._live: Optional[Live] = None
        self._common: Optional[Store] = None

    def get_backend(self) -> str:
        """See base class."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The store of the rendezvous is that of the workers, too."""
        return True

    def get_run_id(self) -> str:
        """See base class."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class."""
        try:
            if self.is_closed():
                raise RendezvousClosedError(
                    f"the rendezvous {self._run_id} has ended; give the next launch another --rdzv-id"
                )
            job = self._joined()
            live = job.quorum(
                NODES, self._min, self._max, self._config["last_call_timeout"], self._config["join_timeout"]
            )
            rank = live.processes.index(job.process)
            # Whatever torchrun starts from here on knows that its keys are apart already: restarts are
            # counted by each node for itself, and a node that came later counts fewer.
            namespace = f"rendezvous-{live.generation}"
            os.environ["HOLDFAST_NAMESPACE"] = namespace
            port = self._agent.open(namespace)
            store = PrefixStore("torchrun", self._connect(port))
        except RoundTimeout as error:
            raise RendezvousTimeoutError(str(error)) from error
        except (HoldfastError, AgentError) as error:
            raise RendezvousConnectionError(str(error)) from error
        self._live = live
        log.info("rendezvous %s: generation %s, node %s of %s", self._run_id, live.generation, rank, len(live))
        return RendezvousInfo(store, rank, len(live), RendezvousStoreInfo(self._agent.host, port))

    def num_nodes_waiting(self) -> int:
        """Nodes that wait for the next rendezvous and could be in it: those of the present one that
        came again, and others as far as there is room."""
        job, live = self._job, self._live
        if job is None or live is None:
            return 0
        try:
            waiting = [member for member in job.waiting(NODES) if member[0] != job.process]
            if not waiting:
                return 0
            back = sum(member in live.members for member in waiting)
            alive = job.alive()
            left = sum(member in alive for member in live.members)
            return back + min(len(waiting) - back, max(self._max - left, 0))
        except HoldfastError as error:
            # Asked again in a moment.
            log.warning("rendezvous %s: cannot see who waits: %s", self._run_id, error)
            return 0

    def is_closed(self) -> bool:
        """See base class."""
        return self._with_common(lambda store: store.check([CLOSED]))

    def set_closed(self) -> None:
        """See base class."""
        self._with_common(lambda store: store.set(CLOSED, "1"))
        # A set has no answer; a question behind it has.
        self.is_closed()

    def shutdown(self) -> bool:
        """See base class."""
        try:
            self.set_closed()
            if self._job is not None:
                self._job.leave()
            return True
        except (HoldfastError, AgentError, RendezvousConnectionError) as error:
            log.warning("rendezvous %s: not closed: %s", self._run_id, error)
            return False
        finally:
            self._common = None
            self._agent.leave()

    def _joined(self) -> Job:
        """This node's life; a new one if the one before has ended."""
        if self._job is None or self._job.valid_for is None:
            if self._job is not None:
                self._job.leave()
            self._job = Job.join(
                self._agent.job + SUFFIX,
                self._agent.run,
                "any",
                open_run=True,
                store=self._store_list,
                host=self._host,
                ttl=self._config["ttl"],
                timeout=self._config["join_timeout"],
            )
        return self._job

    def _connect(self, port: int) -> TCPStore:
        timeout = datetime.timedelta(seconds=self._config["timeout"])
        return TCPStore(self._agent.host, port, is_master=False, wait_for_workers=False, timeout=timeout)

    def _with_common(self, ask: Any) -> Any:
        """Asks the store that all rendezvous have in common; once more over a new connection, if the
        agent has been started again."""
        for attempt in (1, 2):
            try:
                if self._common is None:
                    self._common = PrefixStore("rendezvous", self._connect(self._agent.port))
                return ask(self._common)
            except (RuntimeError, AgentError) as error:
                self._common = None
                if attempt == 2:
                    raise RendezvousConnectionError(f"the agent's store does not answer: {error}") from error
                time.sleep(0.1)
        return None


def _name(run_id: str) -> str:
    """A run id as a name of a job: other signs become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run_id) or "default"
