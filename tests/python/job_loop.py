"""One process of a job: advances until it is told to leave, with a line for each iteration.

    job_loop.py PROCESS WORLD TTL
"""
import sys
import threading

import holdfast

process, world, ttl = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
leave = threading.Event()


def listen():
    sys.stdin.readline()
    leave.set()


with holdfast.Job.join(process=process, world=world, members_min=1, ttl=ttl) as job:
    print("joined", job.incarnation, flush=True)
    threading.Thread(target=listen, daemon=True).start()
    while not leave.is_set():
        now = job.advance()
        assert now.members[now.processes.index(process)].incarnation == job.incarnation
        members = ",".join(f"{member.process}:{member.incarnation}" for member in now.members)
        print("iteration", now.iteration, now.generation, now.rank, now.world_size, members, flush=True)
print("left", flush=True)
