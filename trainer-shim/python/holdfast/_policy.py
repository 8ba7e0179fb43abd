"""The numbers that a process gives when it joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional, Union


@dataclass(frozen=True)
class Assignment:
    """How ranks are assigned, step by step; nothing is done but closing gaps if there is no step. ::

        Assignment().fill_gaps().divisible_by(8)
    """

    steps: tuple[Mapping[str, Any], ...] = ()
    """As the store has them: a mapping from the name of a step to its numbers."""

    def shift(self) -> Assignment:
        """Everybody keeps its order; gaps are closed."""
        return self._with("shift")

    def fill_gaps(self) -> Assignment:
        """Gaps are filled with the highest ranks; everybody else keeps its rank."""
        return self._with("fill_gaps")

    def max_active(self, most: int) -> Assignment:
        """Leaves out the highest ranks above this number."""
        return self._with("max_active", max=most)

    def divisible_by(self, divisor: int) -> Assignment:
        """Leaves out the highest ranks until the number is divisible."""
        return self._with("divisible_by", divisor=divisor)

    def filter_grouped(self, label: str, least: int, most: int = 0) -> Assignment:
        """Leaves out whole groups of processes with one value of a label, unless their number suits;
        ``most`` 0 is no limit."""
        return self._with("filter_grouped", label=label, min=least, max=most)

    def tree(self, *layers: Mapping[str, Any]) -> Assignment:
        """Ranks by a tree of domains with reserves, from the root to the innermost: each layer a mapping
        with some of ``label``, ``ranks_min``, ``ranks_max``, ``reserve`` and ``backfill``. The first step."""
        return self._with("tree", layers=[dict(layer) for layer in layers])

    def _with(self, name: str, **numbers: Any) -> Assignment:
        return Assignment((*self.steps, {name: numbers or None}))


@dataclass(frozen=True)
class Policy:
    """What a job is to do when processes come and go, and when one falls silent.

    The first eight are to be the same in all processes. Where they differ, those of most of the processes
    that have been members longest govern, nobody is refused, and ``holdfast why`` says who differs; a process
    whose own ``members_min`` an outcome does not meet leaves, with an error.
    """

    world: Optional[int] = None
    """While no process is a member of the job yet, rounds over all active processes wait for so many;
    standbys fill up to it. None = ``WORLD_SIZE``."""
    members_min: int = 1
    """No round over all active processes has fewer members."""
    last_call: float = 0.0
    """Seconds that a round waits for the world, or for lost processes to come back, before it goes on
    with ``members_min``. With 0 a job never begins below its world, and does not wait for the lost."""
    evict_after: Optional[float] = None
    """Seconds after which :meth:`~holdfast.Job.advance` declares missing processes dead, if most are there."""
    restarts_max: int = 0
    """With more incidents than that :attr:`Iteration.stop` is said; 0 = never. An iteration that lost or
    replaced somebody is one, however many it were."""
    restarts_window: Optional[float] = None
    """Only incidents of so many seconds count; none = all."""
    active_min: int = 1
    """With fewer ranks :attr:`Iteration.stop` is said, too."""
    assignment: Union[Assignment, Sequence[Mapping[str, Any]]] = Assignment()
    """How ranks are assigned: an :class:`Assignment`, or its steps as the store has them."""
    heartbeat: float = 1.0
    """Seconds between two heartbeats of the library."""
    soft_timeout: Optional[float] = 60.0
    """Seconds of silence after which the agent reports it, and calls ``on_silence``; none = never."""
    hard_timeout: Optional[float] = 90.0
    """Seconds of silence after which the agent sends SIGCONT and SIGTERM; none = never."""
    grace: float = 5.0
    """Seconds later it sends SIGKILL."""
    main_thread_timeout: Optional[float] = None
    """Seconds for which the main thread has not run Python, while no verb waits in it, after which the
    process is ended in the same way; none = never, since one that compiles looks like one that hangs."""
    on_silence: Optional[Callable[[float, Optional[float]], object]] = None
    """``on_silence(silent, ends_in)`` is called in a thread of its own, with both in seconds: what it can do
    is abort what the program hangs in."""


NAMES = tuple(field.name for field in fields(Policy))
