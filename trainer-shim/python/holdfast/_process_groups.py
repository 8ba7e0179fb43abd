"""How a program's process groups are formed with each generation: in place, or made again."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Optional, Protocol, cast

import torch.distributed as dist

from . import _nccl as nccl
from . import _sockets as sockets
from ._subgroup import Subgroup

c10d = dist.distributed_c10d

ALONE = 1 << 62
"""Numbers of communicators of one rank, which tear down what was before: above those of all generations. The store
knows each number that any rank has used: an incarnation is given once."""

ALONE_BITS = 20
"""Of these numbers, those that count the communicators of one incarnation."""

PART_BITS = 20
"""Of the numbers of a subgroup's communicators, those that say which of its lists it is. The others are the generation."""


class ProcessGroups(Protocol):
    """The default process group and the subgroups of it."""

    reconfigures: bool
    subgroups: list[Subgroup]

    def add(self, subgroup: Subgroup) -> None:
        """One more subgroup, while this rank is alone."""

    def handle(self) -> bytes:
        """What the other members must know of this process."""

    def be_alone(self) -> None:
        """Groups of this rank alone take the place of those before. Nothing of them runs here any more, and their
        connections are closed."""

    def form(self, formed: dict[str, Any], parts: list[list[list[int]]], within: float, connected_within: float) -> None:
        """Groups of a generation, in so many seconds; what an abort can interrupt may take as long as
        ``connected_within``. ``parts``: the lists of each subgroup."""

    def abort(self) -> None:
        """Collectives that run fail, as far as the backend can do that. From any thread."""

    def failure(self) -> Optional[str]:
        """What has failed in one of them, if the backend knows of failures that no call has raised. From any thread."""

    def close(self) -> None:
        """Destroys all of them."""


class InPlace:
    """Groups that are reconfigured: the objects stay the same. Handles name the other members, so that nobody needs the
    store."""

    reconfigures = True

    def __init__(self, backend: str, store: dist.Store, timeout: datetime.timedelta, process: int, incarnation: int) -> None:
        self.subgroups: list[Subgroup] = []
        self._backend, self._store, self._timeout, self._incarnation = backend, store, timeout, incarnation
        self._made: list[dist.ProcessGroup] = []
        self._alone = 0
        # Where all members listen, by which their connections are known; of this rank, from the beginning on.
        self._listeners: set[sockets.Address] = set()
        before = sockets.listening()
        # Without a communicator, and without a word to others: the rank here is this process's number.
        dist.init_process_group(
            backend, store=store, rank=process, world_size=process + 1, timeout=timeout, enable_reconfigure=True
        )
        self._listens = sockets.listening() - before
        self._world = cast(dist.ProcessGroup, dist.group.WORLD)
        if dist._supports_reconfigure(self._world):
            self.be_alone()
        else:
            self.reconfigures = False

    def add(self, subgroup: Subgroup) -> None:
        before = sockets.listening()
        # As `new_group` does it, which cannot say that the group is to be reconfigured.
        made, _ = c10d._new_process_group_helper(
            1,
            0,
            [dist.get_rank()],
            dist.Backend(self._backend),
            self._store,
            f"holdfast.{subgroup.name}",
            timeout=self._timeout,
            group_desc=subgroup.name,
            enable_reconfigure=True,
        )
        self._listens |= sockets.listening() - before
        self.subgroups.append(subgroup)
        self._made.append(made)
        self._alone_in(made)
        self._is_of(subgroup, made, [dist.get_rank()])

    def handle(self) -> bytes:
        handles = [dist._get_reconfigure_handle(one) for one in (self._world, *self._made)]
        return json.dumps({"handles": handles, "listens": sorted(self._listens)}).encode()

    def be_alone(self) -> None:
        self._listeners = set()
        self._destroy_others()
        for made in (self._world, *self._made):
            self._alone_in(made)
        self._world_is_of([0])
        for subgroup, made in zip(self.subgroups, self._made):
            self._is_of(subgroup, made, [0])

    def form(self, formed: dict[str, Any], parts: list[list[list[int]]], within: float, connected_within: float) -> None:
        generation, rank, ends = formed["generation"], formed["rank"], time.monotonic() + within
        brought = [json.loads(one) for one in formed["handles"]]
        handles = [one["handles"] for one in brought]
        if "gloo" in self._backend:
            self._listeners = {(host, port) for one in brought for host, port in one["listens"]}
        self._destroy_others()
        self._reconfigure(self._world, generation, [one[0] for one in handles], ends)
        self._world_is_of(list(range(len(handles))))
        # Groups that the program makes itself with `new_group` are of this generation, too: they meet under its prefix,
        # by names that count from the same number in all ranks.
        prefix = dist.PrefixStore(f"generation.{generation}", self._store)
        c10d._world.pg_map[self._world] = (c10d._world.pg_map[self._world][0], prefix)
        c10d._world.group_count = 1
        for place, (subgroup, made) in enumerate(zip(self.subgroups, self._made)):
            index, part = _mine(parts[place], rank)
            if not part:
                self._alone_in(made)
            else:
                number = generation << PART_BITS | index
                self._reconfigure(made, number, [handles[one][1 + place] for one in part], ends)
            self._is_of(subgroup, made, part)

    def abort(self) -> None:
        if "gloo" in self._backend:
            # Gloo's abort does nothing.
            sockets.cut(self._listeners)
        else:
            nccl.abort([self._world, *self._made])

    def failure(self) -> Optional[str]:
        return None

    def close(self) -> None:
        # A program that keeps one of them keeps no connection.
        self.be_alone()
        dist.destroy_process_group()

    def _reconfigure(self, made: dist.ProcessGroup, number: int, handles: list[str], ends: float) -> None:
        left = datetime.timedelta(seconds=max(ends - time.monotonic(), 0.1))
        dist._reconfigure(number, handles, group=made, timeout=left).wait()

    def _alone_in(self, made: dist.ProcessGroup) -> None:
        self._alone += 1
        number = ALONE | self._incarnation << ALONE_BITS | self._alone
        dist._reconfigure(number, [dist._get_reconfigure_handle(made)], group=made).wait()

    def _world_is_of(self, ranks: list[int]) -> None:
        c10d._world.pg_group_ranks[self._world] = {rank: rank for rank in ranks}

    @staticmethod
    def _is_of(subgroup: Subgroup, made: dist.ProcessGroup, ranks: Optional[list[int]]) -> None:
        # PyTorch translates ranks by this table, and fills it when a group is made.
        c10d._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks or [dist.get_rank()])}
        subgroup._is(made if ranks else None, ranks)

    def _destroy_others(self) -> None:
        """Groups that the program has made itself."""
        kept = (self._world, *self._made)
        for made in list(c10d._world.pg_map):
            if not any(made is one for one in kept):
                with contextlib.suppress(Exception):
                    dist.destroy_process_group(made)


class MadeAgain:
    """Groups that are destroyed, and made again under the prefix of their generation."""

    reconfigures = False

    def __init__(self, backend: str, connect: Callable[[], dist.Store], timeout: datetime.timedelta) -> None:
        self.subgroups: list[Subgroup] = []
        self._backend, self._connect, self._timeout = backend, connect, timeout
        self._store = connect()
        self._listeners: set[sockets.Address] = set()
        self._hooks = (sys.excepthook, sys.excepthook)
        self._over = threading.Event()
        self.be_alone()

    def add(self, subgroup: Subgroup) -> None:
        self.subgroups.append(subgroup)
        self._make_subgroup(subgroup, [[0]], 0)

    def handle(self) -> bytes:
        return b""

    def be_alone(self) -> None:
        # Also where somebody keeps a group that is destroyed, as DistributedDataParallel does: its sockets stay open.
        self.abort()
        self._listeners = set()
        # Of the generation that is formed next.
        self._over = threading.Event()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._make(dist.HashStore(), 0, 1, [[[0]] for _ in self.subgroups])

    def form(self, formed: dict[str, Any], parts: list[list[list[int]]], within: float, connected_within: float) -> None:
        dist.destroy_process_group()
        rank, size, limit = formed["rank"], len(formed["members"]), datetime.timedelta(seconds=within)
        if "nccl" in self._backend:
            # A thread that still connects for an older generation can wait in a call of that one's client, which
            # serves one call at a time.
            self._store = self._connect()
        store = dist.PrefixStore(f"generation.{formed['generation']}", self._store)
        # Making a group has the timeout of its collectives, which can be long. So nobody begins before all are here.
        _exchange(store, "here", (rank, size), [], limit)
        before = sockets.listening()
        self._make(store, rank, size, parts)
        if "gloo" in self._backend:
            # Where the groups of all members listen, by which their connections are known.
            found = _exchange(store, "listens", (rank, size), list(sockets.listening() - before), limit)
            self._listeners = {(host, port) for one in found for host, port in one}
        if "nccl" in self._backend:
            nccl.connect(list(c10d._world.pg_map), self._over, connected_within)

    def abort(self) -> None:
        self._over.set()
        if "gloo" in self._backend:
            sockets.cut(self._listeners)
        if self._backend != "gloo":
            nccl.abort(list(c10d._world.pg_map))

    def failure(self) -> Optional[str]:
        return nccl.failure() if "nccl" in self._backend else None

    def close(self) -> None:
        self.abort()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _make(self, store: dist.Store, rank: int, size: int, parts: list[list[list[int]]]) -> None:
        # It gives groups their names, and counts those that could not be made, too.
        c10d._world.group_count = 0
        # It puts the rank before what an exception says, by a hook around the hook that is there.
        before = self._hooks[0] if sys.excepthook is self._hooks[1] else sys.excepthook
        sys.excepthook = before
        dist.init_process_group(self._backend, store=store, rank=rank, world_size=size, timeout=self._timeout)
        self._hooks = (before, sys.excepthook)
        for subgroup, lists in zip(self.subgroups, parts):
            self._make_subgroup(subgroup, lists, rank)

    def _make_subgroup(self, subgroup: Subgroup, parts: list[list[int]], rank: int) -> None:
        # Names are counted: each rank calls for the groups of all.
        made = [dist.new_group(part, timeout=self._timeout) for part in parts]
        index, part = _mine(parts, rank)
        subgroup._is(made[index] if part else None, part)


def _exchange(store: dist.Store, name: str, place: tuple[int, int], value: Any, limit: datetime.timedelta) -> list[Any]:
    """What all ranks bring. ``place``: the rank, and how many there are."""
    rank, size = place
    keys = [f"{name}/{one}" for one in range(size)]
    store.set(keys[rank], json.dumps(value))
    store.wait(keys, limit)
    return [json.loads(one) for one in store.multi_get(keys)]


def _mine(parts: list[list[int]], rank: int) -> tuple[int, Optional[list[int]]]:
    """In which of the lists a rank is."""
    for index, part in enumerate(parts):
        if rank in part:
            return index, part
    return 0, None


def process_groups(
    backend: str, connect: Callable[[], dist.Store], timeout: datetime.timedelta, process: int, incarnation: int
) -> ProcessGroups:
    """Those that this PyTorch and this backend can have, of this rank alone: what is made with them, as
    ``DistributedDataParallel``, asks nobody. ``connect``: to the store, by a client of its own."""
    if "nccl" in backend:
        # Never in place: that was not run, and shows no failure that no call raises.
        nccl.survive()
    elif hasattr(dist, "_supports_reconfigure"):
        groups = InPlace(backend, connect(), timeout, process, incarnation)
        if groups.reconfigures:
            return groups
        dist.destroy_process_group()
    return MadeAgain(backend, connect, timeout)
