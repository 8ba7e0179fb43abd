"""Process groups among some ranks of an elastic one. See :class:`holdfast.torch.Subgroup`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional, Union

import torch.distributed as dist

from . import _arguments as arguments
from ._errors import Refused

RanksOf = Callable[[int], Sequence[Sequence[int]]]
"""Of the number of ranks: the lists of ranks that have a group in common, as ``[[0, 1], [2, 3]]`` of 4."""


class Subgroup:
    """A process group among some ranks of an :class:`ElasticGroup`, made by :meth:`ElasticGroup.subgroup`."""

    def __init__(self, name: str, ranks_of: RanksOf) -> None:
        self.name = name
        self.group: Union[dist.ProcessGroup, int] = dist.GroupMember.NON_GROUP_MEMBER
        """For ``group=`` of collectives. ``dist.GroupMember.NON_GROUP_MEMBER`` in a rank that is in none of the lists, as
        ``new_group`` has it: collectives return at once there."""
        self.ranks: tuple[int, ...] = ()
        """The ranks of :attr:`group` in the whole, in their order; empty in a rank that is in none."""
        self._ranks_of = ranks_of

    def _is(self, group: Optional[dist.ProcessGroup], ranks: Optional[Sequence[int]]) -> None:
        self.group = dist.GroupMember.NON_GROUP_MEMBER if group is None else group
        self.ranks = tuple(ranks or ())

    def _parts(self, world_size: int) -> list[list[int]]:
        """The lists among so many ranks."""
        try:
            parts = [[arguments.whole("a rank", rank) for rank in part] for part in self._ranks_of(world_size)]
        except TypeError as error:
            raise self._wrong(f"of {world_size} ranks it must return lists of ranks: {error}") from error
        seen: set[int] = set()
        for part in parts:
            for rank in part:
                if rank >= world_size:
                    raise self._wrong(f"rank {rank} is not one of {world_size}, which are 0 to {world_size - 1}")
                if rank in seen:
                    raise self._wrong(f"rank {rank} is there twice: a rank is in one of the lists, or in none")
                seen.add(rank)
        return [part for part in parts if part]

    def _wrong(self, text: str) -> Refused:
        return Refused(f"the function of the subgroup {self.name!r} is wrong: {text}", "invalid_request", False, "none")

    def __repr__(self) -> str:
        return f"<holdfast.torch.Subgroup {self.name!r}: ranks {list(self.ranks)}>"
