"""One process that tells its agent how it is doing, and hears when it says nothing."""

import queue
import time

import holdfast

heard = queue.Queue()
with holdfast.Job.join(
    process=0,
    world=1,
    heartbeat=0.1,
    soft_timeout=10,
    hard_timeout=None,
    on_silence=lambda silent, ends_in: heard.put((silent, ends_in)),
) as job:
    assert job.advance().iteration == 1
    time.sleep(12)
    assert heard.empty(), "heartbeats are enough until it tells of more"
    with job.paused(60):
        job.progress(7)
        time.sleep(12)
        assert heard.empty(), "nobody counts"
    silent, ends_in = heard.get(timeout=60)
    assert silent >= 10 and ends_in is None, (silent, ends_in)
    with job.critical(60):
        job.progress(8)
        silent, ends_in = heard.get(timeout=60)
    job.ping()
    try:
        holdfast.Job.join(process=1, soft_timeout=-1)
    except holdfast.Refused as error:
        assert "-1" in str(error), error
    else:
        raise AssertionError("no length of time")
print("all good", flush=True)
