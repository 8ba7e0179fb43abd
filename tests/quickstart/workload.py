"""The quickstart's workload without PyTorch: data-parallel training in plain Python.

Speaks the same protocol to the same agent. Here even the gradients go through the store, so every
step needs it: each rank sets its gradient, waits for the others' and adds them up in the order of
the ranks. A counter of finished steps and a barrier now and then, as in `train.py`.
"""
import argparse
import hashlib
import json
import math
import os
import random
import struct
import time

from tcpstore_wire import Client

FEATURES, BATCH = 4, 8
STEPS_PER_BARRIER = 10
LEARNING_RATE = 0.1
# Stands for reading and preparing a batch.
LOADING_SECONDS = 0.02


class Notes:
    """Acknowledged store calls, one JSON line each; the clock is the same for all processes."""

    def __init__(self, path: str):
        self.file = open(path, "w", buffering=1)
        self.longest = 0.0

    def timed(self, operation: str, call, **what):
        started = time.monotonic()
        result = call()
        seconds = time.monotonic() - started
        self.longest = max(self.longest, seconds)
        line = {"operation": operation, "at": started, "seconds": seconds, **what}
        if operation == "add":
            line["result"] = result
        self.file.write(json.dumps(line) + "\n")
        return result


def gradient(weights: list[float], step: int, rank: int) -> tuple[float, list[float]]:
    """Loss and gradient of this rank's batch: the same for the same step and rank in every run."""
    source = random.Random(1000 * step + rank)
    loss, slope = 0.0, [0.0] * FEATURES
    for _ in range(BATCH):
        x = [source.uniform(-1, 1) for _ in range(FEATURES)]
        difference = sum(w * v for w, v in zip(weights, x)) - math.sin(x[0] + 2 * x[1])
        loss += difference * difference / BATCH
        for i in range(FEATURES):
            slope[i] += 2 * difference * x[i] / BATCH
    return loss, slope


def exchange(notes: Notes, store: Client, rank: int, world: int, step: int, mine: list[float]):
    """Sum over all ranks, always in the order of the ranks."""
    key, value = f"gradient/{step}/{rank}", json.dumps(mine)

    def set_and_add():
        store.set(key, value.encode())
        return store.add("steps", 1)

    notes.timed("add", set_and_add, key="steps", delta=1, set_key=key, set_value=value)
    total = [0.0] * len(mine)
    for other in range(world):
        theirs = notes.timed("get", lambda other=other: store.get(f"gradient/{step}/{other}"))
        total = [a + b for a, b in zip(total, json.loads(theirs))]
    return total


def train(steps: int, notes: Notes, store: Client, rank: int, world: int) -> None:
    weights, loss = [0.0] * FEATURES, 0.0
    for step in range(1, steps + 1):
        time.sleep(LOADING_SECONDS)
        mine, slope = gradient(weights, step, rank)
        loss, *slope = exchange(notes, store, rank, world, step, [mine, *slope])
        loss /= world
        weights = [w - LEARNING_RATE * s / world for w, s in zip(weights, slope)]
        if step % STEPS_PER_BARRIER == 0:
            notes.timed("barrier", lambda: store.barrier(f"barrier/{step}", world))
        print(f"step {step} of {steps} loss {loss:.6f}", flush=True)
    packed = struct.pack(f"<{FEATURES}d", *weights)
    print(f"longest store call {1000 * notes.longest:.1f} ms", flush=True)
    print(f"final loss {loss!r} weights {hashlib.sha256(packed).hexdigest()[:16]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--notes", required=True, help="file for the acknowledged store calls")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    notes = Notes(options.notes)
    store = Client(host, port, timeout=120, nonce=os.getpid())
    notes.timed("barrier", lambda: store.barrier("start", world))
    print(f"rank {rank} of {world} joined through {host}:{port}", flush=True)
    train(options.steps, notes, store, rank, world)
    store.close()


if __name__ == "__main__":
    main()
