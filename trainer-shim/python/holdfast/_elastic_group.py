"""A process group whose ranks come and go. See :class:`holdfast.torch.ElasticGroup`."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import _arguments as arguments
from ._errors import HoldfastError, Over, Refused, Revoked
from ._job import Job
from ._process_groups import process_groups
from ._subgroup import RanksOf, Subgroup
from ._types import Iteration, Member, members

logger = logging.getLogger("holdfast")

SPEC_BYTES_MAX = 256
"""Bytes of what ranks must agree on."""

REVOKED_WITHIN = 5.0
"""Seconds in which a failed collective is explained by a revocation, before it counts as the program's own error."""

FAILED_ALONE_MAX = 3
"""Collectives that may fail in this rank while nobody has gone, before that is the program's own error."""

WATCH_EVERY = 1.0
"""Seconds after which the thread that waits for revocations asks again, and whether a collective has failed unseen."""


@dataclass(frozen=True)
class ElasticIteration(Iteration):
    """An iteration with a communicator among its ranks. In ``with`` it is a block that ends early, without an
    error, when the communicator is revoked or fails: the next iteration has another one."""

    formed: bool = False
    """The communicator is another one than before: ranks may be new, take the state from one that has it."""
    joined: tuple[Member, ...] = ()
    """Members that were not in the communicator before this one, as far as this process knows."""
    group: Optional[ElasticGroup] = field(default=None, repr=False, compare=False)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> bool:
        if super().__exit__(kind, error, traceback):
            return True
        return self.group is not None and error is not None and self.group._explains(error)


class ElasticGroup:
    """The default process group of this program, among the ranks of the job's iterations. ::

        with holdfast.Job.join() as job, holdfast.torch.ElasticGroup(job, "gloo") as group:
            model = DistributedDataParallel(Net())
            for iteration in group.iterations():
                with iteration:                       # ends early when a rank is lost
                    if iteration.formed:
                        take_state_from_rank_0(model)
                    train(model)

    When a rank dies, the store revokes the communicator in the entry of the death, and every survivor hears of
    it; their collectives fail, since the dead rank's sockets close and those who stop close theirs. All get the
    next iteration, in which the same process group is formed anew with the ranks that are there, once nothing of
    the old communicator runs any more; a rank that comes back is taken in. An existing
    ``DistributedDataParallel`` goes on.

    With a PyTorch that cannot reconfigure a group (before 2.15) it is destroyed and made again:
    :attr:`reconfigures` says which. Then make what holds on to the group, as ``DistributedDataParallel``, again
    when ``iteration.formed``. Groups among some of the ranks are made by :meth:`subgroup`.

    ``backend``: of ``torch.distributed``. ``stop_max``: seconds in which a rank must have let go of a revoked
    communicator, before its agent ends it. ``form_max``: seconds in which all ranks must have built one.
    ``patience``: seconds that ranks wait in :meth:`advance` before the communicator that others still use is
    revoked, and again before they fail, or, with the job's ``evict_after``, that many seconds before the missing ranks
    are declared dead. ``timeout``: of the group's collectives. All ranks give the same.
    """

    def __init__(
        self,
        job: Job,
        backend: str = "gloo",
        *,
        stop_max: float = 30.0,
        form_max: float = 60.0,
        patience: float = 60.0,
        timeout: float = 1800.0,
        store: Optional[dist.Store] = None,
    ) -> None:
        if not isinstance(job, Job):
            arguments.wrong_type("job", job, "a holdfast.Job")
        if job._in_attempt:
            text = "holdfast.restart begins the iterations of this job: use init_process_group, with group_store(attempt.iteration)"
            raise Refused(text, "conflict", False, "none")
        backend = arguments.text("backend", backend)
        numbers = {"stop_max": stop_max, "form_max": form_max, "patience": patience, "timeout": timeout}
        stop_max, form_max, patience, timeout = (arguments.seconds(name, value) for name, value in numbers.items())
        for name, value in (("stop_max", stop_max), ("form_max", form_max)):
            if value < 1:
                arguments.refuse(name, value, "1 second at least")
        if dist.is_initialized():
            text = "this program has a default process group: an ElasticGroup makes it itself, and forms it anew"
            raise Refused(text, "invalid_request", False, "none")
        self.job, self.backend = job, backend
        self._holds = job._native.holds()
        if job._evict_after is not None:
            patience = job._evict_after
        self._limits = (stop_max, form_max, patience)
        # What cannot be interrupted must end before this rank is declared dead for not having stopped.
        self._build_max = (min(form_max, stop_max / 2), form_max)

        def connect() -> dist.Store:
            return store if store is not None else _store(f"elastic.{job.run}")

        self._generation, self._intact, self._in_use, self._arrived = 0, False, False, False
        self._members: tuple[Member, ...] = ()
        self._closed, self._pid = threading.Event(), os.getpid()
        self._lock = threading.RLock()
        self._failed_alone, self._failure = 0, ""
        self._aborted = 0
        limit = datetime.timedelta(seconds=timeout)
        self._groups = process_groups(backend, connect, limit, job.process, job.incarnation)
        self.reconfigures = self._groups.reconfigures
        job._groups.append(self)
        how = "are formed anew in place" if self.reconfigures else "are destroyed and made again"
        logger.info("process groups (%s, torch %s) %s when ranks change", backend, torch.__version__, how)

    def subgroup(self, ranks_of: RanksOf, name: Optional[str] = None) -> Subgroup:
        """A process group among some of the ranks, which is formed anew together with the whole. ::

            pairs = group.subgroup(lambda world_size: [[rank, rank + 1] for rank in range(0, world_size - 1, 2)])
            for iteration in group.iterations():
                with iteration:
                    dist.all_reduce(tensor, group=pairs.group)

        ``ranks_of``: for a number of ranks, the lists of those that have a group in common; a rank is in one of them, or
        in none. All ranks make the same subgroups in the same order, before the first iteration; until then each is alone
        in them, as in the whole. A member that is lost in one of them ends the generation of all.
        """
        if not callable(ranks_of):
            arguments.wrong_type("ranks_of", ranks_of, "a function of the number of ranks")
        name = arguments.text("name", f"subgroup {len(self._groups.subgroups)}" if name is None else name)
        if any(one.name == name for one in self._groups.subgroups):
            arguments.refuse("name", name, "another one than that of each subgroup before")
        if self._arrived or self._closed.is_set():
            text = "subgroups are made before the first iteration, by all ranks: later ones would not know of them"
            raise Refused(text, "conflict", False, "none")
        subgroup = Subgroup(name, ranks_of)
        if len(self._spec(subgroup)) > SPEC_BYTES_MAX:
            text = f"the names of all subgroups are too long together: {SPEC_BYTES_MAX} bytes have to be enough"
            raise Refused(text, "invalid_request", False, "none")
        self._groups.add(subgroup)
        return subgroup

    @property
    def generation(self) -> int:
        """The generation of the communicator that is held; 0 = none is."""
        return self._generation if self._intact else 0

    def revoked(self, within: float = 0.0) -> Optional[str]:
        """Why the communicator must not be used any more; none = it may be. Waits at most so many seconds for it."""
        if not self._generation:
            return None
        return self._holds.revoked(self._generation, within)

    def raise_if_revoked(self) -> None:
        """Waits for the device, and raises :class:`holdfast.Revoked` if the communicator is over. ::

            loss.backward()
            group.raise_if_revoked()
            optimizer.step()

        With NCCL, a collective that is aborted ends like one that has succeeded, without an exception, and its result is
        wrong. So call this after the collectives of a step, and before anything that is kept uses their results; and
        before the group is left, since that aborts what still runs. With gloo they raise by themselves. What a
        collective has written in place stays wrong: clear gradients before they are computed, and receive a state into
        tensors that are copied only after this.
        """
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if self._generation and (why := self.revoked() or (None if self._intact else "it was aborted here")) is not None:
            raise Revoked(f"generation {self._generation} of the process group is revoked: {why}", "conflict", False, "none")

    def advance(self, timeout: Optional[float] = None) -> ElasticIteration:
        """The next iteration of the job, with a communicator among its ranks: the same as before if nobody has come
        or gone. As :meth:`holdfast.Job.advance`; nothing of the communicator may run meanwhile.

        If the outcome stays unknown, as when :class:`holdfast.StoreLost` is raised, others may have gone on without this
        rank: its communicator is aborted, and :attr:`generation` is 0. Call this again."""
        self.job._refuse_in_attempt()
        timeout = arguments.seconds_or_never("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        how = (self._spec(), *self._limits)
        self._arrived = True
        while True:
            if self._failed_alone > FAILED_ALONE_MAX:
                failures = f"{self._failed_alone} generations of the process group have failed though nobody had gone"
                raise RuntimeError(f"{failures}; the latest: {self._failure}")
            if self._intact and self.revoked() is not None:
                self._intact = False
            if not self._intact:
                self._stop()
            holds = self._generation if self._intact else 0
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            # From the arrival on it may have been released, unless its round is known not to have closed.
            self._intact = False
            try:
                found, formed = self._holds.advance(how, (holds, self._groups.handle()), self.job._evict_after is not None, left)
            except Revoked:
                continue
            except BaseException as error:
                if holds and isinstance(error, HoldfastError) and error.outcome == "none":
                    self._goes_on()
                else:
                    self._abort()
                raise
            now = self.job._begun(found)
            if formed is None or formed["rank"] is None:
                self._stop()
                return self._iteration(now, False, ())
            if formed["again"]:
                self._goes_on()
                self._failed_alone = 0
                return self._iteration(now, False, ())
            before = set(self._members)
            if self._form(formed):
                return self._iteration(now, True, tuple(one for one in self._members if one not in before))

    def iterations(self, timeout: Optional[float] = None) -> Iterator[ElasticIteration]:
        """The iterations of the job, one after the other, each begun by :meth:`advance`; as
        :meth:`holdfast.Job.iterations`."""
        timeout = arguments.seconds_or_never("timeout", timeout)
        while True:
            try:
                now = self.advance(timeout)
            except Over:
                return
            if now.stop is not None:
                return
            if now.rank is not None:
                yield now

    def fail(self, reason: str) -> None:
        """Revokes the communicator, for all: none of its collectives counts any more."""
        if self._generation:
            self._intact = False
            self._holds.revoke(self._generation, arguments.text("reason", reason)[:200], None)

    def close(self) -> None:
        """Lets go of the communicator, and destroys the process group. Twice is as good as once. In a process that was
        forked since, nothing: the connections are those of its parent."""
        if self._closed.is_set() or self._pid != os.getpid():
            return
        self._closed.set()
        self._intact = False
        with self._lock, contextlib.suppress(Exception):  # It is over, and the process may be, too.
            self._groups.close()
        if self._generation:
            with contextlib.suppress(HoldfastError):  # If it cannot be said now, the end of this incarnation says it.
                self._holds.release(self._generation, 10.0)

    def __enter__(self) -> ElasticGroup:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()

    def _iteration(self, now: Iteration, formed: bool, joined: tuple[Member, ...]) -> ElasticIteration:
        known: dict[str, Any] = {one.name: getattr(now, one.name) for one in fields(Iteration)}
        return ElasticIteration(**known, formed=formed, joined=joined, group=self)

    def _spec(self, *more: Subgroup) -> bytes:
        """What is the same in all ranks, or they are told who differs."""
        text = f"{self.backend} torch {torch.__version__}"
        names = [subgroup.name for subgroup in (*self._groups.subgroups, *more)]
        return (f"{text}, subgroups {names}" if names else text).encode()

    def _form(self, formed: dict[str, Any]) -> bool:
        """Builds the communicator; False if it is revoked before it is ready everywhere."""
        with self._lock:
            self._generation, self._members, self._in_use = formed["generation"], members(formed["members"]), True
        parts = [subgroup._parts(len(self._members)) for subgroup in self._groups.subgroups]
        threading.Thread(target=self._watch, args=(self._generation,), name="holdfast-abort", daemon=True).start()
        try:
            self._groups.form(formed, parts, *self._build_max)
            self._holds.ready(self._generation, None)
        except Revoked:
            return False
        except HoldfastError:
            self._abort()
            raise
        except Exception as error:
            if self.revoked(REVOKED_WITHIN) is None:
                logger.warning("generation %d could not be built here: %s", self._generation, error)
                self._fails_alone(str(error))
                self._holds.revoke(self._generation, f"it could not be built: {error}"[:200], None)
            return False
        self._goes_on()
        return self._intact and self.revoked() is None

    def _goes_on(self) -> None:
        """The communicator may be used, unless it was aborted meanwhile."""
        with self._lock:
            self._intact = self._aborted != self._generation

    def _abort(self) -> None:
        """What runs fails, and so does what is begun before the next iteration."""
        with self._lock:
            if self._in_use:
                # Before collectives end: with NCCL those that are aborted end as if they had succeeded.
                self._intact, self._aborted = False, self._generation
                self._groups.abort()

    def _fails_alone(self, why: str) -> None:
        """A generation has failed though nobody has gone. The next one may do better, but not for ever."""
        self._failed_alone, self._failure = self._failed_alone + 1, why

    def _stop(self) -> None:
        """Nothing of the communicator runs here any more: ranks that still wait for this one in a collective fail."""
        with self._lock:
            if self._in_use:
                self._in_use = False
                self._groups.be_alone()

    def _watch(self, generation: int) -> None:
        """Aborts what runs, as soon as it must not be used any more. The main thread may sit in a collective."""
        why, failed = None, None
        while why is None and self._generation == generation and not self._closed.is_set():
            try:
                why = self._holds.revoked(generation, WATCH_EVERY if failed is None else REVOKED_WITHIN)
                if why is None and failed is not None:
                    self._fails_alone(failed)
                    self._holds.revoke(generation, failed, None)
                failed = self._groups.failure()
            except Exception as error:  # This incarnation has ended, or the program is ending.
                why = str(error)
        if self._generation != generation or self._closed.is_set():
            return
        logger.warning("generation %d of the process group is revoked: %s", generation, why)
        with self._lock:
            if self._generation == generation:
                self._abort()

    def _explains(self, error: BaseException) -> bool:
        """Whether an exception in an iteration comes from a communicator that is over. One that has failed by itself
        is revoked for all."""
        if isinstance(error, Revoked):
            return True
        if not isinstance(error, Exception) or isinstance(error, HoldfastError):
            return False
        is_collective = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "nccl"))
        if "nccl" in self.backend and not is_collective and "CUDA error" not in str(error) and self.revoked() is not None:
            # A collective that was aborted has left values that are wrong, and whatever is made of them can fail.
            logger.warning("an exception in generation %d, which is revoked, ends its iteration", self._generation, exc_info=error)
            return True
        if not is_collective or not isinstance(error, RuntimeError):
            return False
        logger.warning("a collective of generation %d failed: %s", self._generation, error)
        if self.revoked(REVOKED_WITHIN) is not None:
            return True
        self._fails_alone(str(error))
        if self._failed_alone > FAILED_ALONE_MAX:
            return False
        self.fail(f"{type(error).__name__}: {error}")
        return True


def _store(name: str) -> dist.Store:
    from .torch import group_store

    return group_store(name)
