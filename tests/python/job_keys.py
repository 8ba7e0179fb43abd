"""Keys of the run and what happens in the job, for a program without torch: with a lease of its own, or under an
agent.

    job_keys.py
"""
import threading
import time

import holdfast

POLICY = holdfast.Policy(world=1, assignment=holdfast.Assignment().fill_gaps().divisible_by(1))


def raises(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{call} raised no {kind.__name__}")


def keys(kv):
    assert kv.get("k") is None
    revision = kv.put("k", "v")
    assert kv.get("k") == b"v" and revision > 0
    assert kv.put("k", bytes(range(256))) > revision and kv.get("k") == bytes(range(256))
    assert kv.add("n") == 1 and kv.add("n", -5) == -4 and kv.get("n") == b"-4"
    assert kv.cas("c", None, "one") == (True, b"one")
    lost = kv.cas("c", None, "two")
    assert not lost and lost.value == b"one"
    assert kv.cas("c", "one", "two") and kv.get("c") == b"two"
    assert kv.cas("never", "x", "y") == (False, None)
    assert kv.delete("c") and not kv.delete("c")
    assert raises(holdfast.Refused, kv.add, "k").outcome == "none"
    assert raises(holdfast.RoundTimeout, kv.wait, ["k", "missing"], timeout=0.3)
    kv.wait(["k", "n"], timeout=30)
    late = threading.Timer(0.5, kv.put, ("late", b"1"))
    late.start()
    kv.wait("late", timeout=30)

    changes = kv.watch("w/")
    done = [kv.put("w/1", "a"), kv.put("other", "b"), kv.put("w/2", "c")]
    kv.delete("w/1")
    seen = [next(changes) for _ in range(3)]
    assert [(one.key, one.kind, one.value) for one in seen] == [
        ("w/1", "put", b"a"), ("w/2", "put", b"c"), ("w/1", "delete", None)
    ], seen
    assert seen[0].revision == done[0]
    again = kv.watch("w/", from_revision=done[0])
    assert [next(again) for _ in range(3)] == seen, seen
    last = kv.put("w/3", "d")
    assert next(again).revision == last
    assert list(kv.watch("w/", from_revision=last + 1, timeout=1)) == [], "it ends when nothing comes"


def news(job):
    heard, all_there = [], threading.Event()

    def hear(event):
        heard.append(event)
        if event.kind == "ended":
            all_there.set()
        raise RuntimeError("a callback that fails fails alone")

    with job.on_change(hear) as subscription, job.on_change(lambda _: time.sleep(3600)):
        # No round waits for one that is not ready.
        late = holdfast.Job.join(job.name, process=1, policy=POLICY, ready=False)
        assert (late.process, late.incarnation) == (-1, 0) and late.name == job.name
        raises(holdfast.Refused, late.advance)
        assert len(job.alive()) == 1
        before = job.iteration()
        assert job.advance(timeout=60).processes == (0,)
        late.ready()
        late.ready()
        assert late.process == 1 and len(job.alive()) == 2
        late.leave()
        assert all_there.wait(60), heard
        assert not subscription.ended
    assert [event.kind for event in heard] == ["registered", "ended"], heard
    assert heard[0].details["process"] == 1 and job.iteration()[0] == before[0] + 1
    behind = []
    with job.on_change(behind.append, after=0):
        while len(behind) < 4:
            time.sleep(0.05)
    assert [event.kind for event in behind[:2]] == ["registered", "advanced"], behind
    never = holdfast.Job.join(job.name, process=7, policy=POLICY, ready=False)
    never.leave()
    raises(holdfast.HoldfastError, never.advance)


with holdfast.Job.join(process=0, policy=POLICY) as job:
    first = job.advance(timeout=60)
    assert first.rank == 0 and first.stop is None
    keys(job.kv)
    news(job)
print("all good", flush=True)
