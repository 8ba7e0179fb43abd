"""PyTorch's own TCPStore client against the server at HOST PORT.

Plain PyTorch. First every operation once, then many at a time from many connections until `stop`
arrives on standard input. Prints a line for each thing that happens; any surprise is an exception.
"""
import datetime
import os
import sys
import threading

import torch
from torch.distributed import PrefixStore, TCPStore

PATIENCE = datetime.timedelta(seconds=120)
ADDERS, COUNTERS_PER_CAS = 6, 2


def connect(host: str, port: int) -> TCPStore:
    return TCPStore(host, port, None, False, timeout=PATIENCE)


def expect(found, wanted) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def every_operation(store, other) -> None:
    """What PyTorch's documentation and its own server promise. `other` is a second connection."""
    store.set("k", "v")
    expect(other.get("k"), b"v")
    expect(store.add("n", 5), 5)
    expect(other.add("n", -7), -2)
    expect(store.get("n"), b"-2")
    expect(store.check(["k", "n"]), True)
    expect(store.check(["k", "missing"]), False)
    store.wait(["k", "n"], PATIENCE)
    try:
        store.wait(["missing"], datetime.timedelta(milliseconds=150))
        raise AssertionError("nobody sets it")
    except torch.distributed.DistStoreError as error:
        expect("wait timeout" in str(error), True)
    expect(store.get("k"), b"v")
    expect(store.compare_set("c", "", "A"), b"A")
    expect(store.compare_set("absent", "zz", "A"), b"zz")
    expect(store.check(["absent"]), False)
    expect(other.compare_set("c", "A", "B"), b"B")
    expect(store.compare_set("c", "X", "C"), b"B")
    keys = store.num_keys()
    expect(store.delete_key("k"), True)
    expect(store.delete_key("k"), False)
    expect(store.num_keys(), keys - 1)
    store.append("a", "ab")
    store.append("a", "cd")
    # An append has no answer; this one, on the same connection, comes behind it.
    expect(store.get("a"), b"abcd")
    expect(other.get("a"), b"abcd")
    store.multi_set(["m1", "m2"], ["1", "22"])
    expect(other.multi_get(["m1", "m2"]), [b"1", b"22"])
    late = threading.Timer(0.2, lambda: other.set("late", "L"))
    late.start()
    expect(store.get("late"), b"L")
    late.join()
    if hasattr(store, "queue_push"):
        store.queue_push("q", "1")
        store.queue_push("q", "2")
        expect(store.queue_len("q"), 2)
        expect([other.queue_pop("q"), other.queue_pop("q")], [b"1", b"2"])
        try:
            store.queue_pop("q", False)
            raise AssertionError("the queue is empty")
        except torch.distributed.QueueEmptyError:
            pass
    if hasattr(store, "list_keys"):
        expect("m1" in store.list_keys(), True)
    if hasattr(store, "barrier"):
        party = threading.Thread(target=lambda: other.barrier("b", 2, PATIENCE))
        party.start()
        store.barrier("b", 2, PATIENCE)
        party.join()
        store.barrier("alone", 1, PATIENCE)
    prefixed = PrefixStore("outer", PrefixStore("inner", store))
    prefixed.set("k", "p")
    expect(PrefixStore("outer", PrefixStore("inner", other)).get("k"), b"p")
    expect(prefixed.add("n", 1), 1)
    expect(store.check(["k"]), False)


class Load:
    """Threads with a connection each; the first exception of any ends the program."""

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port
        self.stop = threading.Event()
        self.threads, self.numbers, self.swaps, self.pushed = [], [], 0, 0
        self.lock = threading.Lock()
        self.rounds = 0

    def start(self, work, *arguments) -> None:
        def guarded():
            try:
                work(connect(self.host, self.port), *arguments)
            except BaseException as error:
                print(f"failed {work.__name__}: {error!r}", flush=True)
                # The others may be waiting for this one.
                os._exit(1)
        thread = threading.Thread(target=guarded)
        thread.start()
        self.threads.append(thread)

    def adder(self, store, name: str) -> None:
        numbers, written = [], PrefixStore(f"adder{name}", store)
        while not self.stop.is_set():
            numbers.append(store.add("counter", 1))
            written.set("last", str(numbers[-1]))
            written.append("log", ".")
            expect(written.get("last"), str(numbers[-1]).encode())
            with self.lock:
                self.rounds += 1
        expect(written.get("log"), b"." * len(numbers))
        with self.lock:
            self.numbers += numbers

    def swapper(self, store) -> None:
        """A counter made of compare_set. Values are unique, so a swap that happened is seen."""
        swaps = 0
        me = threading.get_ident()
        while not self.stop.is_set():
            found = store.compare_set("cas", "", f"0 {me} 0").decode()
            number = int(found.split()[0])
            wanted = f"{number + 1} {me} {swaps}"
            if store.compare_set("cas", found, wanted) == wanted.encode():
                swaps += 1
        with self.lock:
            self.swaps += swaps

    def producer(self, store, name: str) -> None:
        pushed = 0
        while not self.stop.is_set():
            store.queue_push("queue", f"{name} {pushed}")
            # Answered only after the push is there.
            store.queue_len("queue")
            pushed += 1
        store.queue_push("queue", f"{name} end")
        with self.lock:
            self.pushed += pushed

    def consumer(self, store, producers: int) -> None:
        next_of, ended = {}, 0
        while ended < producers:
            name, item = store.queue_pop("queue").decode().split()
            if item == "end":
                ended += 1
                continue
            # Each producer's values in order, without a gap or a double.
            expect(int(item), next_of.get(name, 0))
            next_of[name] = int(item) + 1
        with self.lock:
            self.popped = sum(next_of.values())

    def party(self, store, name: int) -> None:
        """Barriers of two, one after the other. Who stops first leaves a note for the other."""
        barriers = PrefixStore("barriers", store)
        round = 0
        while True:
            if name == 0 and self.stop.is_set():
                barriers.set("last", str(round))
            store.barrier(f"barrier{round}", 2, PATIENCE)
            PrefixStore("p", store).set(f"{round}/{name}", "")
            store.wait([f"p/{round}/{1 - name}"], PATIENCE)
            if barriers.check(["last"]) and int(barriers.get("last")) <= round:
                return
            round += 1

    def run(self) -> None:
        for n in range(ADDERS):
            self.start(self.adder, str(n))
        for _ in range(COUNTERS_PER_CAS):
            self.start(self.swapper)
        store = connect(self.host, self.port)
        if hasattr(store, "queue_push"):
            for name in ("x", "y"):
                self.start(self.producer, name)
            self.start(self.consumer, 2)
        if hasattr(store, "barrier"):
            for name in range(2):
                self.start(self.party, name)
        threading.Thread(target=self.report, daemon=True).start()
        for line in sys.stdin:
            if line.strip() == "stop":
                break
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.check(store)

    def report(self) -> None:
        reported = 0
        while not self.stop.wait(0.05):
            if self.rounds >= reported + 20:
                reported = self.rounds
                print(f"round {reported}", flush=True)

    def check(self, store) -> None:
        expect(sorted(self.numbers), list(range(1, len(self.numbers) + 1)))
        expect(store.add("counter", 0), len(self.numbers))
        expect(int(store.get("cas").decode().split()[0]), self.swaps)
        if hasattr(store, "queue_push"):
            expect(self.popped, self.pushed)
            expect(store.queue_len("queue"), 0)
        print(f"counted {len(self.numbers)} adds, {self.swaps} swaps, {self.pushed} pushes", flush=True)


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    every_operation(connect(host, port), connect(host, port))
    print("operations", flush=True)
    Load(host, port).run()


if __name__ == "__main__":
    main()
