"""One process whose main thread does what it is told line by line.

    main_thread.py PROCESS [LIMIT]

    sleep S      waits in time.sleep: the GIL is free
    hold S       waits in C with the GIL held: no other thread runs Python, either
    spin S       runs Python all the time
    wait         waits in a verb for process 1
    beside S     sleeps while another thread waits in that verb
    end          ends

Says "joined", "began WHAT" and "done WHAT".
"""
import ctypes
import queue
import sys
import threading
import time

import holdfast

LIBC_WITH_GIL = ctypes.PyDLL(None)


def spin(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


def meet():
    job.live_processes("others", among=[0, 1])


def beside(seconds):
    threading.Thread(target=meet, daemon=True).start()
    time.sleep(seconds)


def orders():
    """Lines of stdin, read beside the main thread: waiting for one is no Python, either."""
    read = queue.SimpleQueue()
    threading.Thread(target=lambda: [read.put(line) for line in sys.stdin], daemon=True).start()
    while True:
        while read.empty():
            time.sleep(0.05)
        yield read.get()


DO = {"sleep": time.sleep, "hold": lambda seconds: LIBC_WITH_GIL.sleep(int(seconds)), "spin": spin, "beside": beside}

process = int(sys.argv[1])
limit = float(sys.argv[2]) if len(sys.argv) > 2 else None
with holdfast.Job.join(process=process, world=1, heartbeat=0.2, grace=1, main_thread_timeout=limit) as job:
    print("joined", flush=True)
    for line in orders():
        what, _, seconds = line.strip().partition(" ")
        if what == "end":
            break
        print("began", what, flush=True)
        if what == "wait":
            meet()
        else:
            DO[what](float(seconds))
        # The interpreter answers between two instructions.
        ends = time.monotonic() + 60
        while job.main_thread_silent and time.monotonic() < ends:
            spin(0.01)
        assert job.main_thread_silent == 0, job.main_thread_silent
        print("done", what, flush=True)
assert job.main_thread_silent is not None, "it is watched as long as the interpreter"
print("left", flush=True)
