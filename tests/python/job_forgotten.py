"""Waits for what happens in a job of which the store keeps no event at all.

    job_forgotten.py
"""
import queue

import holdfast

told = queue.Queue()
with holdfast.Job.join(process=0, world=1) as job, job.on_change(told.put) as subscription:
    before = 0
    for _ in range(2):
        other = holdfast.Job.join(job.name, process=1, world=1)
        heard = told.get(timeout=60)
        assert (heard.kind, heard.run, heard.at_ms) == ("missed", "", 0), heard
        assert heard.revision > heard.details["after"] >= before, heard
        # It is what a list of events has no more, and who is alive can still be asked.
        assert job.events(heard.details["after"]) == []
        assert {member.process for member in job.alive()} == {0, 1}
        before = heard.revision
        other.leave()
        ended = told.get(timeout=60)
        assert ended.kind == "missed" and ended.revision > before, (heard, ended)
    assert not subscription.ended
print("all good", flush=True)
