"""launch_job.py by ranks that have written over their variables, as setproctitle does.

Usage: hidden_rank.py FOLDER ATTEMPTS

ATTEMPTS are those in which they do that, as in `0,1`.
"""
import ctypes
import os
import sys

import launch_job

TITLE = b"train: step=0 of many"


def write_over_variables() -> None:
    """The title stands where the variables were, and zeros behind it. They themselves are kept
    elsewhere, where this process still finds them."""
    for name, value in list(os.environb.items()):
        os.putenv(name, value)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rsplit(b")", 1)[1].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, TITLE, min(len(TITLE), end - start - 1))
    with open("/proc/self/environ", "rb") as file:
        if not file.read().startswith(TITLE + b"\0"):
            raise AssertionError("the variables can still be read")


def main() -> None:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt in sys.argv.pop(2).split(","):
        write_over_variables()
    launch_job.main()


if __name__ == "__main__":
    main()
