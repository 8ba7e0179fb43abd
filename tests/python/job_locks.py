"""A process that takes a lock, and holds it until it is told to let go.

    job_locks.py PROCESS
"""
import sys

import holdfast

with holdfast.Job.join(process=int(sys.argv[1]), world=1, members_min=1) as job:
    print("joined", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        print("waits", flush=True)
        with job.lock("data", timeout=120) as generation:
            print(f"holds {generation}", flush=True)
            if sys.stdin.readline().strip() == "raise":
                raise ValueError("as it was told")
        print("let go", flush=True)
