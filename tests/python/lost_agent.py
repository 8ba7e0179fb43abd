"""What a PyTorch program sees of the death of its agent at HOST PORT.

A gloo group of one rank, and a wait in a thread beside it. Every failure is printed by its name; a
step of the group works before and after.
"""
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import TCPStore


def failure(call) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def main() -> None:
    os.environ |= {
        "MASTER_ADDR": sys.argv[1],
        "MASTER_PORT": sys.argv[2],
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    beside = TCPStore(sys.argv[1], int(sys.argv[2]), None, False)
    failed: list[str] = []
    waiting = threading.Thread(target=lambda: failed.append(failure(lambda: beside.wait(["never"]))))
    waiting.start()
    print("waiting", flush=True)
    waiting.join()
    print("wait failed:", failed[0], flush=True)
    print("add failed:", failure(lambda: beside.add("n", 1)), flush=True)
    # The store is not in the way of the data.
    dist.all_reduce(torch.ones(1))
    print("stepped", flush=True)
    # Else one of Gloo's threads may still hold a tensor when Python ends, and PyTorch aborts then.
    dist.destroy_process_group()


main()
