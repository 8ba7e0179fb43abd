"""A program that opens stores of odd names, and too many. Plain PyTorch, which knows nothing of Holdfast.

Usage: store_names.py PORT FILE

The last line that it prints is `all as they should be`.
"""
import datetime
import sys

import torch.distributed as dist

SOON = datetime.timedelta(seconds=60)
# As many as one program may have, and one more.
STORES_MAX = 128


def master(host: str, port: int) -> dist.TCPStore:
    return dist.TCPStore(host, port, 1, True, timeout=SOON, wait_for_workers=False)


def refused(host: str, port: int) -> str:
    try:
        master(host, port)
    except (RuntimeError, TypeError) as error:
        return str(error)
    raise AssertionError(f"{host[:20]!a}:{port} was opened")


def main() -> None:
    port, file = int(sys.argv[1]), sys.argv[2]
    store = master("localhost", port)
    others = (store, dist.PrefixStore("p", store).underlying_store, store.clone())
    named = {(other.host, other.port) for other in others}
    if named != {("localhost", port)}:
        raise AssertionError(named)

    everything = "".join(map(chr, range(1, 128)))
    for host in ("", "\0", everything, "ä\n\x1b[2J", "::1", "[::1]", "a" * 255):
        if host in ("", "::1", "[::1]"):
            # They are all this host.
            if "EADDRINUSE" not in refused(host, port):
                raise AssertionError(host)
            continue
        odd = master(host, port)
        odd.set("key", host or "none")
        if odd.get("key") != host.encode() or odd.host != host:
            raise AssertionError(ascii(host))
        del odd
    for host, why in (("a" * 256, "may have 255"), ("\udc80", "incompatible constructor arguments")):
        if why not in refused(host, port):
            raise AssertionError(ascii(host))

    # A program that opens ten thousand gets an error at the first above the limit.
    kept = [store]
    while len(kept) < STORES_MAX:
        try:
            kept.append(master("many", len(kept)))
        except dist.DistNetworkError as error:
            # Those above have just ended, which the agent learns a moment later.
            if "stores open already" not in str(error):
                raise
    if "128 stores open already" not in refused("many", len(kept)):
        raise AssertionError("one more was opened")
    del kept[1:]
    for other in range(16):
        master("many", 1000 + other)

    for _ in range(2):
        store = dist.FileStore(file, 1)
        store.set("key", "value")
        if store.get("key") != b"value":
            raise AssertionError("a store in a file")
    print("all as they should be", flush=True)


if __name__ == "__main__":
    main()
