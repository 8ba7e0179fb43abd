"""What surrounds the building of NCCL's communicators, without a GPU: members that come, fail, or never come."""
import os
import threading

from holdfast import _nccl


class Group:
    """Stands for a process group: how building it ends, and whether it was aborted afterwards."""

    def __init__(self, outcome):
        self.outcome, self.aborted, self.release = outcome, threading.Event(), threading.Event()

    def abort(self):
        self.aborted.set()


def build(group, device):
    assert device == "the device"
    if group.outcome == "hangs":
        group.release.wait()
    elif group.outcome is not None:
        raise group.outcome


_nccl.build_one, _nccl._device = build, lambda: "the device"


def connected(groups, over=None, within=60.0):
    try:
        _nccl.connect(groups, over or threading.Event(), within)
    except RuntimeError as error:
        return str(error)
    return "connected"


assert connected([Group(None), Group(None)]) == "connected"
assert connected([Group(None), Group(RuntimeError("no route"))]) == "no route"
assert connected([Group("hangs")], within=0.1).startswith("NCCL has not connected all members within")

# The generation ends while a member is missing. Where it comes all the same, later, nothing is left of the group.
over, hanging, never = threading.Event(), Group("hangs"), Group(AssertionError("built after the end"))
threading.Timer(0.1, over.set).start()
assert "when the generation ended" in connected([hanging, never], over)
hanging.release.set()
assert hanging.aborted.wait(60)

os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
_nccl.survive()
assert {name: os.environ[name] for name in _nccl.SETTINGS} == _nccl.SETTINGS
print("all good")
