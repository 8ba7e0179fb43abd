"""A process that waits for an iteration which never begins, and what its library says meanwhile: a line each,
as Python's logging gets it. With HOLDFAST_CONTROL it hangs on the agent, else on a lease of its own."""
import logging
import os

import holdfast


class Told(logging.Handler):
    def emit(self, record):
        print(f"warning: {record.getMessage()}", flush=True)


logging.getLogger("holdfast").addHandler(Told())
where = {} if "HOLDFAST_CONTROL" in os.environ else {"job": "outage-own"}
with holdfast.Job.join(world=3, members_min=3, ttl=90, timeout=80, **where) as job:
    print("joined", flush=True)
    job.advance()
