"""torchrun's rendezvous, and its workers' store, on Holdfast::

    torchrun --rdzv-backend=holdfast --rdzv-endpoint=10.0.0.1:21001,10.0.0.2:21001,10.0.0.3:21001 \\
        --rdzv-id=try-7 --nnodes=1:4 --nproc-per-node=8 train.py

Found by torchrun (torch 2.7 and later) through the entry point ``torchrun.handlers``. Any node may
die, the first one included: those that are left meet again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
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
from ._environment import warn_once
from ._errors import Fenced, HoldfastError, RoundTimeout, StoreLost
from ._job import Job
from ._subscription import Subscription
from ._types import Live, Member

log = logging.getLogger(__name__)

BACKEND = "holdfast"

NODES = "nodes"
"""The round in which nodes meet."""

SUFFIX = ".nodes"
"""Nodes are a job of their own beside that of their workers: a round of the workers' own does not
wait for torchrun."""

NAME_MAX = 128 - len(SUFFIX)
"""Bytes of a job's name, of which the nodes' needs some."""

UNNAMED = ("", "none")
"""What torchrun says where no ``--rdzv-id`` is given."""

CLOSED = "closed"
"""The key that says that a rendezvous is over."""

PRESENT = "present"
"""The key that says which rendezvous is the present one."""

POLL = 0.5
"""Seconds between two looks at what may have changed."""

CONFIRM = 2.0
"""Seconds between two looks whether all who have met are still alive."""

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
    cluster, with a new incarnation for each rendezvous.

    A rendezvous is a round that closes with the largest number of nodes, or some time after the
    smallest. It begins when nobody is left in the one before: its members have ended, or have come
    again, as new incarnations. So there are never two at a time, even if nodes come, go, or are slow. Its
    generation names a namespace of its own for the store of torchrun and of its workers, served by
    the agent on this host: nothing of a former attempt is ever read.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self._min, self._max = params.min_nodes, params.max_nodes
        self._config = {name: _seconds(name, params.get(name, default)) for name, default in CONFIG.items()}
        warn_once()
        store = params.endpoint or os.environ.get("HOLDFAST_STORE", "")
        if not store:
            raise ValueError("no store: give --rdzv-endpoint=HOST:PORT,… of its nodes, or set HOLDFAST_STORE")
        self._place_kept = 2 * max(self._config["last_call_timeout"], self._config["ttl"])
        self._host = params.local_addr or socket.gethostname()
        self._run_id = _id(params.run_id, self._max)
        name = _name(self._run_id)
        job = os.environ.get("HOLDFAST_JOB") or name
        if job.endswith(SUFFIX):
            raise ValueError(f"the job {job!r}: names that end in {SUFFIX} are for the nodes of other launches")
        try:
            self._agent = Agent.find(store, job, os.environ.get("HOLDFAST_RUN") or name)
        except AgentError as error:
            raise RendezvousConnectionError(str(error)) from error
        self._store_list = store
        self._job: Optional[Job] = None
        self._live: Optional[Live] = None
        self._common: Optional[Store] = None
        self._patience_ends = 0.0
        # Whether there was no room for this node since it was in a rendezvous.
        self._spare = False
        self._looked, self._waiting = 0.0, 0
        # Who is alive is asked again only when something has happened.
        self._changed = threading.Event()
        self._news: Optional[Subscription] = None
        self._members: tuple[Member, ...] = ()

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
            job, live = self._meet()
            rank = live.processes.index(job.process)
            # Programs that torchrun starts from here on know that their keys are apart already: restarts are
            # counted by each node for itself, and a node that came later counts fewer.
            namespace = f"rendezvous-{live.generation}"
            os.environ["HOLDFAST_NAMESPACE"] = namespace
            port = self._agent.open(namespace)
            store = PrefixStore("torchrun", self._connect(port))
        except RoundTimeout as error:
            raise RendezvousTimeoutError(str(error)) from error
        except (HoldfastError, AgentError) as error:
            raise RendezvousConnectionError(str(error)) from error
        self._live, self._spare = live, False
        self._changed.set()
        log.info("rendezvous %s: generation %s, node %s of %s", self._run_id, live.generation, rank, len(live))
        return RendezvousInfo(store, rank, len(live), RendezvousStoreInfo(self._agent.host, port))

    def num_nodes_waiting(self) -> int:
        """Nodes that have come, or have come again, since the present rendezvous, as far as there is
        room for them. Above 0, too, if this node has been taken for dead meanwhile."""
        job, live = self._job, self._live
        if job is None or live is None:
            return 0
        # torchrun asks ten times a second.
        if self._may_have_changed():
            try:
                alive = self._alive(job)
                left = sum(member in alive for member in live.members)
                room = max(self._max - left, 0)
                me = Member(job.process, job.incarnation)
                self._waiting = min(len(alive) - left, room) if me in alive else 1
            except HoldfastError as error:
                # Asked again in a moment.
                log.warning("rendezvous %s: cannot see who waits: %s", self._run_id, error)
                self._waiting = 0
                self._changed.set()
        return self._waiting

    def _may_have_changed(self) -> bool:
        if self._news is None or self._news.ended:
            # Without a subscription it has to ask.
            return time.monotonic() - self._looked >= POLL
        return self._changed.is_set()

    def _alive(self, job: Job) -> tuple[Member, ...]:
        """Who is alive, by what was told."""
        if self._may_have_changed():
            # What happens from here on sets it again.
            self._changed.clear()
            self._looked = time.monotonic()
            self._members = job.alive()
        return self._members

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
            return True
        except (HoldfastError, AgentError, RendezvousConnectionError) as error:
            log.warning("rendezvous %s: not closed: %s", self._run_id, error)
            return False
        finally:
            # The others need not wait for its lease, whether they know of the end or not.
            if self._job is not None:
                self._job.leave()
            # The agent goes with this handler: until then torchrun still holds a connection to it.
            self._common = None

    def _meet(self) -> tuple[Job, Live]:
        """The next rendezvous with this node in it."""
        self._be_patient()
        while True:
            job = self._come()
            try:
                self._wait_for_turn(job)
                live = self._gather(job)
                if self._begin(job, live) and self._goes_on(job, live):
                    return job, live
            except Fenced as error:
                # Taken for dead while it waited.
                log.info("rendezvous %s: comes again: %s", self._run_id, error)
            except RoundTimeout:
                # While it took another one's place, that one has come, and the others have met with it.
                _, _, members, _ = self._present()
                alive = job.alive()
                if sum(member in alive for member in members) < self._max:
                    raise
                self._be_patient()

    def _come(self) -> Job:
        """A new incarnation of this node: it is in no rendezvous."""
        before, self._live = self._job, None
        # It takes the place of the one before in one step: the others never see this node gone. Only at
        # first may this launch put an end to the run of another one.
        self._job = Job.join(
            self._agent.job + SUFFIX,
            self._agent.run,
            "any" if before is None else before.process,
            0,  # WORLD_SIZE, where it is set, counts ranks, and these are nodes.
            takeover=before is not None,
            open_run=before is None,
            store=self._store_list,
            host=self._host,
            ttl=self._config["ttl"],
            timeout=self._config["join_timeout"],
        )
        if before is not None:
            before.leave()
        if self._news is not None:
            self._news.close()
        changed = self._changed = threading.Event()
        self._news = self._job.on_change(lambda _: changed.set())
        changed.set()
        return self._job

    def _wait_for_turn(self, job: Job) -> None:
        """Waits until nobody is left in the present rendezvous, and there is room for this node in the
        next: for those who were in the present one first, for the others as they have come. A node that
        does not take its place for long loses it to one that waits."""
        me = Member(job.process, job.incarnation)
        passed_over_since = None
        while True:
            if self.is_closed():
                raise self._over()
            _, _, members, _ = self._present()
            alive = self._alive(job)
            if me not in alive:
                # Taken for dead: it hears of it when it meets the others.
                return
            left = sum(member in alive for member in members)
            if not left:
                former = {member.process for member in members}
                places = sorted(alive, key=lambda member: (member.process not in former, member.process))
                passed_over_since = passed_over_since or time.monotonic()
                if time.monotonic() - passed_over_since > self._place_kept:
                    there = job.waiting(NODES)
                    late = [member for member in places[: self._max] if member not in there and member != me]
                    places = [member for member in places if member not in late]
                if me not in places[self._max :]:
                    return
            elif left >= self._max:
                passed_over_since = None
            if not left or left >= self._max:
                # A spare waits as long as it takes.
                self._spare = True
                self._be_patient()
            elif time.monotonic() > self._patience_ends:
                raise RendezvousTimeoutError(
                    f"the rendezvous {self._run_id} goes on without this node: {left} of its {len(members)} nodes "
                    f"have not come to a new one in {self._config['join_timeout']:g} s"
                )
            time.sleep(POLL)

    def _begin(self, job: Job, live: Live) -> bool:
        """Makes those who have met the present rendezvous. False if another one has begun since this
        node's turn, and is not over: then those who have met come again, all of them, since the
        first one to write decides."""
        while True:
            written, present, members, decided = self._present()
            if present == live.generation:
                return True
            if decided >= live.generation:
                return False
            alive = job.alive()
            if any(member in alive for member in members):
                decision = [present, members, live.generation]
            else:
                decision = [live.generation, live.members, live.generation]
            self._with_common(lambda store: store.compare_set(PRESENT, written, json.dumps(decision)))

    def _goes_on(self, job: Job, live: Live) -> bool:
        """Whether all who have met are still there: torchrun's next step waits for each of them, and
        hears of no death. They meet once more, among themselves. False if one has died since it
        arrived: then the others come again, all of them."""
        name = f"{NODES}-{live.generation}"
        while True:
            try:
                job.quorum(name, len(live), len(live), 0.0, CONFIRM)
                self._with_common(lambda store: store.set(name, "met"))
                return True
            except (RoundTimeout, StoreLost) as error:
                log.info("rendezvous %s: not all have met once more: %s", self._run_id, error)
                # Its own answer may be lost where the others have theirs.
                if self._with_common(lambda store: store.check([name])):
                    return True
                if self.is_closed():
                    raise self._over() from None
                alive = job.alive()
                if any(member not in alive for member in live.members):
                    return False
                if time.monotonic() > self._patience_ends:
                    raise RendezvousTimeoutError(
                        f"the rendezvous {self._run_id}: not all of its {len(live)} nodes go on, though they have "
                        f"met and live; `holdfast --job {job.name} why` names them"
                    ) from None

    def _present(self) -> tuple[str, int, list[Member], int]:
        """The present rendezvous: as it is written, its generation, its members, and the generation
        up to which all others are void."""
        written = self._with_common(lambda store: store.get(PRESENT).decode() if store.check([PRESENT]) else "")
        generation, members, decided = json.loads(written) if written else (0, [], 0)
        return written, generation, [Member(*member) for member in members], decided

    def _gather(self, job: Job) -> Live:
        """Meets the others. If the rendezvous is closed meanwhile, this incarnation ends, and the wait
        with it."""
        met, closed = threading.Event(), threading.Event()

        def watch() -> None:
            while not met.wait(POLL):
                try:
                    if self.is_closed():
                        closed.set()
                        return job.leave()
                except RendezvousConnectionError as error:
                    log.warning("rendezvous %s: %s", self._run_id, error)

        watcher = threading.Thread(target=watch, name="holdfast-rendezvous", daemon=True)
        watcher.start()
        try:
            patience = max(self._patience_ends - time.monotonic(), 0.0)
            return job.quorum(NODES, self._min, self._max, self._config["last_call_timeout"], patience)
        except HoldfastError:
            if closed.is_set():
                raise self._over() from None
            raise
        finally:
            met.set()
            watcher.join()

    def _over(self) -> BaseException:
        if self._spare:
            log.info("the rendezvous %s has ended without this spare node", self._run_id)
            # torch has an error for this, over which torchrun itself fails (2.15).
            return SystemExit(0)
        return RendezvousClosedError(
            f"the rendezvous {self._run_id} has ended; give the next launch another --rdzv-id"
        )

    def _be_patient(self) -> None:
        self._patience_ends = time.monotonic() + self._config["join_timeout"]

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


def _seconds(name: str, text: Any) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise ValueError(f"--rdzv-conf {name}={text}: not a number of seconds")
    return seconds


def _id(run_id: str, nodes_max: int) -> str:
    """The id of this launch, which others on the same cluster must not have by chance."""
    if run_id not in UNNAMED or "HOLDFAST_CONTROL" in os.environ or "HOLDFAST_RUN" in os.environ:
        return run_id
    if nodes_max > 1:
        raise ValueError(
            "no --rdzv-id: give one, the same on all nodes of this launch and on no others; "
            "without it, all launches of the cluster would meet"
        )
    return f"single-{uuid.uuid4().hex[:12]}"


def _name(run_id: str) -> str:
    """A run id as a name of a job. Where characters have to be replaced or left out, a digest keeps
    different ids apart."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", run_id).lstrip(".-")
    if name == run_id and 0 < len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
    return f"{name[: NAME_MAX - len(digest) - 1] or 'run'}-{digest}"
