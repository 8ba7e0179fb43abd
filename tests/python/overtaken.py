"""Two nodes of a torchrun job. What one of them met and did not begin before the other one did is void;
nobody meets without those who are in a rendezvous; and they meet in the one after.

    overtaken.py STORE
"""
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters

from holdfast import Fenced
from holdfast.torchrun import create_handler


def handler():
    return create_handler(RendezvousParameters(
        "holdfast", sys.argv[1], "overtaken", 1, 2, last_call_timeout="1", ttl="5", join_timeout="60"))


def until_it_waits(node, coming):
    """It has more patience whenever it sees that there is no room."""
    patience = set()
    while len(patience) < 4:
        assert not coming.done(), coming.result()
        patience.add(node._patience_ends)
        time.sleep(0.01)


slow, quick = handler(), handler()
slow._be_patient()
job = slow._come()
slow._wait_for_turn(job)
alone = slow._gather(job)
assert len(alone) == 1
# Taken for dead before it could say that it has begun.
job.leave()
begun = quick.next_rendezvous()
assert (begun.rank, begun.world_size) == (0, 1)
assert quick._live.generation > alone.generation
assert not slow._begin(job, alone), "two rendezvous beside each other"
assert not slow._begin(job, alone), "what is void stays void"
assert quick._begin(quick._job, quick._live), "and the other one goes on"
print("void", flush=True)

# One that had its turn before the other one began meets nobody without it.
slow._be_patient()
job = slow._come()
with ThreadPoolExecutor(1) as pool:
    gathering = pool.submit(slow._gather, job)
    while not job.waiting("nodes"):
        assert not gathering.done(), gathering.result()
        time.sleep(0.01)
    time.sleep(1.5)
    assert not gathering.done(), "a second rendezvous beside the first"
    job.leave()
    assert isinstance(gathering.exception(), Fenced), gathering.exception()
print("waits", flush=True)

with ThreadPoolExecutor(1) as pool:
    coming = pool.submit(slow.next_rendezvous)
    # As torchrun does: a last call may be over before the other one is there.
    while not coming.done():
        if quick.num_nodes_waiting():
            again = quick.next_rendezvous()
        time.sleep(0.01)
    both = [coming.result(), again]
assert sorted(node.rank for node in both) == [0, 1] and {node.world_size for node in both} == {2}, both
assert slow._live == quick._live and slow._live.generation > alone.generation
assert not slow._begin(job, alone), "void for ever"
assert slow.num_nodes_waiting() == quick.num_nodes_waiting() == 0
print("met", flush=True)

# A third node has no room, waits, and ends with the others.
spare = handler()
with ThreadPoolExecutor(1) as pool:
    waiting = pool.submit(spare.next_rendezvous)
    until_it_waits(spare, waiting)
    assert slow.num_nodes_waiting() == 0

    # One that comes again, and then no further, loses its place to the one that waits.
    quick._be_patient()
    quick._come()
    while not waiting.done():
        if slow.num_nodes_waiting():
            again = slow.next_rendezvous()
        time.sleep(0.01)
    both = [again, waiting.result()]
    assert sorted(node.rank for node in both) == [0, 1] and {node.world_size for node in both} == {2}, both
    assert slow._live == spare._live
    print("replaced", flush=True)

    waiting = pool.submit(quick.next_rendezvous)
    until_it_waits(quick, waiting)
    assert spare.shutdown()
    ended = waiting.exception()
    assert isinstance(ended, SystemExit) and not ended.code, repr(ended)
# One that was in it hears that it is over.
try:
    slow.next_rendezvous()
    raise AssertionError("the rendezvous is closed")
except RendezvousClosedError as error:
    assert "give the next launch another --rdzv-id" in str(error)
print("all good", flush=True)
