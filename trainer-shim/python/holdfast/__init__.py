"""Who is alive, the next iteration, votes and atomic blocks of a training job.

Decided by a replicated store and by nobody else: there is no rank whose death ends it. ::

    import holdfast

    with holdfast.Job.join(world=4, members_min=2) as job:
        before = None
        for now in job.iterations():          # who is alive, and with which rank
            if now.members != before:         # somebody was lost, or came back
                before = restart_from_checkpoint(now.rank, now.world_size)
            train_some_steps()

Works without PyTorch. ``holdfast.torch``, ``holdfast.nvrx`` and ``holdfast.torchrun`` need it, and are imported by name.
"""

from ._attempt import Attempt
from ._errors import (
    AttemptEnded,
    BlockFailed,
    Fenced,
    ForkedError,
    HoldfastError,
    NoMoreRestarts,
    Over,
    Refused,
    Regroup,
    Revoked,
    RoundTimeout,
    StoreLost,
)
from ._holdfast import __version__
from ._job import Job
from ._keys import Change, Compared, Keys
from ._policy import Assignment, Policy
from ._restart import RestartPolicy, restart
from ._subscription import Subscription
from ._types import Event, Fence, Gathered, Iteration, Live, Member, Remark, Stop, Verdict

__all__ = [
    "Assignment",
    "Attempt",
    "AttemptEnded",
    "BlockFailed",
    "Change",
    "Compared",
    "Event",
    "Fence",
    "Fenced",
    "ForkedError",
    "Gathered",
    "HoldfastError",
    "Iteration",
    "Job",
    "Keys",
    "Live",
    "Member",
    "NoMoreRestarts",
    "Over",
    "Policy",
    "Refused",
    "Regroup",
    "Remark",
    "RestartPolicy",
    "Revoked",
    "RoundTimeout",
    "Stop",
    "StoreLost",
    "Subscription",
    "Verdict",
    "__version__",
    "restart",
]
