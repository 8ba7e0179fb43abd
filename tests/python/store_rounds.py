"""A client of the store that does some operations for each line on its standard input.

Usage: store_rounds.py HOST PORT

A line is a word that it sets and reads again, or `multi-get COUNT BYTES`: it sets so many values
of that size and reads them in one operation.
"""
import datetime
import sys

import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=100)


def multi_get(store: dist.TCPStore, count: int, size: int) -> str:
    keys = [f"big/{size}/{n}" for n in range(count)]
    values = [bytes([n % 251]) * size for n in range(count)]
    for key, value in zip(keys, values):
        store.set(key, value)
    try:
        found = store.multi_get(keys)
    except dist.DistNetworkError:
        return "closed"
    return "equal" if found == values else f"other values: {[len(value) for value in found]}"


def main() -> None:
    store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=PATIENCE)
    store.set("word", "none")
    print("ready", store.get("word").decode(), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "multi-get":
            print("multi-get", multi_get(store, int(words[1]), int(words[2])), flush=True)
            continue
        store.set("word", words[0])
        count = store.add("rounds", 1)
        print(f"round {count}", store.get("word").decode(), flush=True)


if __name__ == "__main__":
    main()
