"""Asks PyTorch's own servers and the agent the same questions, and compares the answers.

Usage: same_answers.py HOST PORT PORT

The ports are those of two agents: for a client with libuv, and for one without. Each is
compared with PyTorch's server of that back end, which this program starts itself. It prints a line
for each answer that differs without being in INTENDED, one for each intended difference that was not
seen, then `compared N answers of torch V`; `--list` prints the names of the intended differences.

An answer is a value, or the type of an exception and the first line of its text. Of DistNetworkError
it is the type alone: whether a closed connection shows as a reset, a broken pipe or its end is chance.
"""
import datetime
import itertools
import re
import sys
import threading
import traceback

# Where the answers are meant to differ: by the name that docs/tcpstore.md gives it, for which back end
# of PyTorch's server, and at which questions.
INTENDED = {
    "A `compare_set` that finds no key and is refused wakes nobody": {
        "libuv": ["compare_set: a refused one and who waits"],
    },
    "A `compare_set` that creates a key wakes who waits for it": {
        "legacy": ["compare_set: a created one and who waits"],
    },
    "Keys above 8 KiB, values above 8 MiB and more than 131 072 keys in one call close the connection": {
        "legacy": ["limits: a key of 8193 bytes", "limits: a value of 8 MiB and a byte",
                   "limits: 131073 keys"],
    },
}

PATIENCE = datetime.timedelta(seconds=60)
SHORT = datetime.timedelta(milliseconds=400)
IMPATIENT = datetime.timedelta(milliseconds=300)
CLIENTS = 32


def stable(error: BaseException) -> str:
    """What of an exception does not depend on chance, nor on where the server is."""
    kind = type(error).__name__
    if kind == "DistNetworkError":
        return kind
    lines = str(error).splitlines()
    return f"{kind}: {re.sub(r'0x[0-9a-f]+', '0x', lines[0]) if lines else ''}"


class World:
    """One server, asked by clients of one back end."""

    def __init__(self, name: str, host: str, port: int, libuv: bool):
        self.name, self.host, self.port, self.libuv = name, host, port, libuv
        self.answers: dict[str, object] = {}

    def connect(self, **settings):
        settings = {"timeout": PATIENCE, **settings}
        return dist.TCPStore(self.host, self.port, is_master=False, use_libuv=self.libuv, **settings)

    def connect_impatiently(self):
        """A client whose time-out may be over before it has connected: then it tries again."""
        for _ in range(200):
            try:
                return self.connect(timeout=IMPATIENT)
            except RuntimeError:
                pass
        raise AssertionError("no connection")

    def ask(self, question: str, call, *arguments) -> None:
        assert question not in self.answers, f"{question!r} is asked twice"
        try:
            self.answers[question] = call(*arguments)
        except Exception as error:
            self.answers[question] = stable(error)

    def released(self, question: str, key: str, write, before=None) -> None:
        """Whether a write of one client ends the wait of another, and what that then reads."""
        waiting, writing = self.connect(), self.connect()
        if before:
            before(writing)
        ended = []

        def wait():
            try:
                # Longer than a slow disk needs for the write.
                waiting.wait([key], datetime.timedelta(seconds=5))
                ended.append("released")
            except Exception as error:
                ended.append(stable(error))
        thread = threading.Thread(target=wait)
        thread.start()
        # The WAIT is at the server before anything is written: not known from outside, and given
        # a time by far too long. A write that comes first gives the same answer.
        thread.join(0.2)
        write(writing)
        thread.join()
        self.ask(question, lambda: (ended, writing.check([key])))

    def run(self) -> None:
        try:
            for case in CASES:
                case(self)
        except BaseException:
            traceback.print_exc()
            self.answers["the program"] = f"failed at {self.name}"


def get_and_set(world: World) -> None:
    store, other = world.connect(), world.connect()
    for name, value in {"text": "value", "empty": "", "bytes": bytes(range(256)), "line": "a\nb\r\n", "nul": b"\0"}.items():
        store.set(f"set/{name}", value)
        world.ask(f"get: {name}", store.get, f"set/{name}")
        world.ask(f"get: {name}, by another client", other.get, f"set/{name}")
    for name, key in {"empty": "", "slash": "/", "nul": "k\0k", "words": "k e y", "unicode": "clé/鍵", "line": "k\n", "control": "\x01\x7f", "init": "init/"}.items():
        store.set(key, f"of {name}")
        world.ask(f"keys: {name}", other.get, key)
        world.ask(f"keys: {name} deleted", store.delete_key, key)
        world.ask(f"keys: {name} gone", other.check, [key])
    store.set("set/twice", "older")
    store.set("set/twice", "newer")
    world.ask("get: set twice", other.get, "set/twice")
    world.ask("set: a number", store.set, "set/number", 5)
    world.ask("set: none", store.set, "set/none", None)
    store.set("set/surrogate", b"\xff\xfe")
    world.ask("get: no text at all", other.get, "set/surrogate")
    for bytes_ in (1, 1 << 10, 1 << 16, 1 << 20, 8 << 20):
        value = bytes([bytes_ % 251]) * bytes_
        store.set(f"set/big{bytes_}", value)
        world.ask(f"get: {bytes_} bytes", lambda: other.get(f"set/big{bytes_}") == value)
        store.delete_key(f"set/big{bytes_}")


def time_outs(world: World) -> None:
    store = world.connect()
    world.ask("wait: for nothing", store.wait, [])
    world.ask("wait: a missing key", store.wait, ["wait/missing"], SHORT)
    store.set("wait/there", "x")
    world.ask("wait: one that is there", store.wait, ["wait/there"], PATIENCE)
    world.ask("wait: one there, one missing", store.wait, ["wait/there", "wait/missing"], SHORT)
    world.ask("wait: twice the same", store.wait, ["wait/there", "wait/there"], PATIENCE)
    world.ask("wait: missing twice", store.wait, ["wait/missing", "wait/missing"], SHORT)
    world.ask("wait: the connection goes on", store.get, "wait/there")
    world.ask("wait: no list", store.wait, "wait/there", SHORT)
    impatient = world.connect_impatiently()
    world.ask("wait: the client's own time-out", impatient.wait, ["wait/missing"])
    world.ask("get: the client's own time-out", impatient.get, "wait/missing")
    world.ask("multi_get: the client's own time-out", lambda: impatient.multi_get(["wait/there", "wait/missing"]))
    store.set_timeout(SHORT)
    world.ask("set_timeout: is there", lambda: store.timeout)
    world.ask("set_timeout: holds", store.get, "wait/missing")
    world.ask("wait: many missing", store.wait, [f"wait/{n}" for n in range(40)], SHORT)


def wakings(world: World) -> None:
    world.released("wait: ended by set", "wake/set", lambda store: store.set("wake/set", ""))
    world.released("wait: ended by add", "wake/add", lambda store: store.add("wake/add", 0))
    world.released("wait: ended by append", "wake/append", lambda store: store.append("wake/append", "x"))
    world.released("wait: ended by multi_set", "wake/multi",
                   lambda store: store.multi_set(["wake/other", "wake/multi"], ["", ""]))
    world.released("compare_set: a created one and who waits", "wake/cas",
                   lambda store: store.compare_set("wake/cas", "", "x"))
    world.released("compare_set: a refused one and who waits", "wake/refused",
                   lambda store: store.compare_set("wake/refused", "other", "x"))
    world.released("wait: not ended by another key", "wake/a", lambda store: store.set("wake/b", ""))
    world.released("wait: deleted and set anew", "wake/anew", lambda store: store.set("wake/anew", "2"),
                   before=lambda store: (store.set("wake/anew", "1"), store.delete_key("wake/anew")))
    if world.libuv and hasattr(dist.TCPStore, "queue_push"):
        world.released("wait: ended by queue_push", "wake/queue",
                       lambda store: (store.queue_push("wake/queue", "x"), store.queue_len("wake/queue")))


def numbers(world: World) -> None:
    store, other = world.connect(), world.connect()
    for delta in (5, -7, 0, 1 << 40, -(1 << 62)):
        world.ask(f"add: {delta}", store.add, "add/n", delta)
    world.ask("add: as a value", other.get, "add/n")
    world.ask("add: too large a number", store.add, "add/n", 1 << 63)
    world.ask("add: no number at all", store.add, "add/n", "1")
    for name, value in {"digits": "41", "sign": "+1", "spaces": "  7", "tail": "12abc", "point": "1.9"}.items():
        store.set(f"add/{name}", value)
        world.ask(f"add: on {name}", store.add, f"add/{name}", 1)
        world.ask(f"add: on {name}, then read", other.get, f"add/{name}")
    for name, value in {"a word": "abc", "nothing": "", "too many digits": "9" * 20}.items():
        client = world.connect()
        client.set(f"add/{name}", value)
        world.ask(f"add: on {name}", client.add, f"add/{name}", 1)
        world.ask(f"add: on {name}, the client afterwards", client.check, [f"add/{name}"])
        world.ask(f"add: on {name}, the value", other.get, f"add/{name}")
    store.set("add/last", str((1 << 63) - 1))
    world.ask("add: over the last number", store.add, "add/last", 1)


def swaps(world: World) -> None:
    store, other = world.connect(), world.connect()
    steps = [("created", "", "A"), ("equal", "A", "B"), ("different", "X", "C"), ("nothing expected", "", "D"),
             ("to nothing", "B", ""), ("nothing there, as expected", "", "E"), ("prefix of it", "", "F")]
    for name, expected, desired in steps:
        world.ask(f"compare_set: {name}", store.compare_set, "cas/k", expected, desired)
        world.ask(f"compare_set: {name}, then read", other.get, "cas/k")
    world.ask("compare_set: absent and expected", store.compare_set, "cas/absent", "zz", "A")
    world.ask("compare_set: absent and expected, then there", other.check, ["cas/absent"])
    world.ask("compare_set: bytes", store.compare_set, "cas/bytes", "", "é\0")


def appends(world: World) -> None:
    store, other = world.connect(), world.connect()
    for part in ("ab", "", "cd", bytes(3)):
        world.ask(f"append: {part!r}", store.append, "append/k", part)
    world.ask("append: then read", store.get, "append/k")
    world.ask("append: read by another", other.get, "append/k")
    store.append("append/empty", "")
    world.ask("append: nothing creates", store.check, ["append/empty"])
    store.set("append/number", "1")
    store.append("append/number", "2")
    world.ask("append: to a number", store.add, "append/number", 1)


def many_at_once(world: World) -> None:
    store, other = world.connect(), world.connect()
    world.ask("multi_set: two", store.multi_set, ["multi/1", "multi/2"], ["1", b"\0\1"])
    world.ask("multi_get: two", store.multi_get, ["multi/1", "multi/2"])
    world.ask("multi_get: other order, twice", store.multi_get, ["multi/2", "multi/1", "multi/2"])
    world.ask("multi_get: none", store.multi_get, [])
    world.ask("multi_set: none", store.multi_set, [], [])
    world.ask("multi_set: fewer values", store.multi_set, ["multi/1", "multi/2"], ["1"])
    world.ask("multi_set: one key twice", store.multi_set, ["multi/3", "multi/3"], ["a", "b"])
    world.ask("multi_get: one key twice", store.get, "multi/3")
    names = [f"multi/many/{n}" for n in range(2000)]
    store.multi_set(names, [str(n) * (n % 50) for n in range(2000)])
    world.ask("multi_get: 2000", store.multi_get, names)
    world.ask("check: 2000", other.check, names)
    world.ask("wait: 2000", other.wait, names, PATIENCE)
    world.ask("check: one of 2001 is missing", other.check, [*names, "multi/none"])
    world.ask("check: none", store.check, [])


def counts(world: World) -> None:
    store = world.connect()
    start = store.num_keys()
    store.set("count/a", "")
    store.add("count/b", 1)
    store.append("count/c", "x")
    store.multi_set(["count/d", "count/e"], ["", ""])
    store.compare_set("count/f", "", "x")
    world.ask("num_keys: six more", lambda: store.num_keys() - start)
    world.ask("delete_key: there", store.delete_key, "count/a")
    world.ask("delete_key: gone", store.delete_key, "count/a")
    world.ask("num_keys: one less", lambda: store.num_keys() - start)
    world.ask("delete_key: then add", store.add, "count/a", 3)
    if hasattr(store, "list_keys"):
        world.ask("list_keys: those of this case", lambda: sorted(key for key in store.list_keys() if key.startswith("count/")))
        world.ask("list_keys: as many as num_keys", lambda: len(store.list_keys()) == store.num_keys())


def queues(world: World) -> None:
    store, other = world.connect(), world.connect()
    if not hasattr(store, "queue_push"):
        return
    world.ask("queue_push: first", store.queue_push, "queue/q", "1")
    world.ask("queue_len: one", store.queue_len, "queue/q")
    if not world.libuv:
        world.ask("queue_pop: without libuv", store.queue_pop, "queue/q")
        return
    for value in ("", bytes(range(256)), "3"):
        store.queue_push("queue/q", value)
    world.ask("queue_len: four", store.queue_len, "queue/q")
    for turn in range(4):
        world.ask(f"queue_pop: {turn}", other.queue_pop, "queue/q")
    world.ask("queue_len: none", store.queue_len, "queue/q")
    world.ask("queue_len: of none such", store.queue_len, "queue/none")
    world.ask("queue_pop: empty, at once", store.queue_pop, "queue/q", False)
    impatient = world.connect_impatiently()
    world.ask("queue_pop: empty, time-out", impatient.queue_pop, "queue/q")
    store.queue_push("queue/beside", "queued")
    world.ask("queue: exists for check", other.check, ["queue/beside"])
    keys = store.num_keys()
    store.queue_push("queue/counted", "x")
    world.ask("queue: counts as no key", lambda: store.num_keys() - keys)
    store.set("queue/beside", "set")
    world.ask("queue: a key beside it", other.get, "queue/beside")
    world.ask("queue: beside a key", other.queue_pop, "queue/beside")
    taken = []
    takers = [threading.Thread(target=lambda: taken.append(world.connect().queue_pop("queue/shared"))) for _ in range(4)]
    for taker in takers:
        taker.start()
    for n in range(4):
        store.queue_push("queue/shared", str(n))
    for taker in takers:
        taker.join()
    world.ask("queue_pop: four wait", lambda: sorted(taken))


def prefixes(world: World) -> None:
    store = world.connect()
    inner = dist.PrefixStore("inner", store)
    outer = dist.PrefixStore("outer", inner)
    outer.set("k", "nested")
    world.ask("prefix: nested", outer.get, "k")
    world.ask("prefix: from inside", inner.get, "outer/k")
    world.ask("prefix: whole", store.get, "inner/outer/k")
    world.ask("prefix: not without it", store.check, ["outer/k"])
    world.ask("prefix: add", outer.add, "n", 2)
    world.ask("prefix: compare_set", outer.compare_set, "c", "", "x")
    world.ask("prefix: append", outer.append, "a", "x")
    world.ask("prefix: multi_set", outer.multi_set, ["m", "k"], ["1", "2"])
    world.ask("prefix: multi_get", outer.multi_get, ["m", "k", "a"])
    world.ask("prefix: delete_key", outer.delete_key, "m")
    world.ask("prefix: num_keys", lambda: outer.num_keys() == store.num_keys())
    world.ask("prefix: wait", outer.wait, ["missing"], SHORT)
    world.ask("prefix: get of none", lambda: (store.set_timeout(SHORT), outer.get("missing")))
    store.set_timeout(PATIENCE)
    empty = dist.PrefixStore("", store)
    empty.set("k", "below nothing")
    world.ask("prefix: empty", store.get, "/k")
    world.ask("prefix: underlying", lambda: type(outer.underlying_store).__name__)
    if world.libuv and hasattr(store, "queue_push"):
        outer.queue_push("q", "x")
        world.ask("prefix: queue_len", inner.queue_len, "outer/q")
        world.ask("prefix: queue_pop", outer.queue_pop, "q")
    if hasattr(store, "list_keys"):
        world.ask("prefix: list_keys", lambda: sorted(key for key in outer.list_keys() if "queue" not in key and len(key) < 12)
                  if len(outer.list_keys()) < 12 else "those of all")
    if hasattr(store, "clone"):
        world.ask("prefix: clone", lambda: dist.PrefixStore("inner", store.clone()).get("outer/k"))


def clones(world: World) -> None:
    store = world.connect()
    if not hasattr(store, "clone"):
        return
    copy = store.clone()
    store.set("clone/k", "x")
    world.ask("clone: its type", lambda: type(copy).__name__)
    world.ask("clone: reads", lambda: (store.check(["clone/k"]), copy.get("clone/k")))
    world.ask("clone: adds", lambda: [store.add("clone/n", 1), copy.add("clone/n", 1)])
    world.ask("clone: its time-out", lambda: copy.timeout)
    # One waits, the other goes on.
    waiting = threading.Thread(target=lambda: copy.wait(["clone/late"], PATIENCE))
    waiting.start()
    world.ask("clone: not held up", store.add, "clone/n", 1)
    store.set("clone/late", "")
    waiting.join()


def barriers(world: World) -> None:
    store, other = world.connect(), world.connect()
    if not hasattr(store, "barrier"):
        return
    both = threading.Thread(target=lambda: other.barrier("barrier/two", 2, PATIENCE))
    both.start()
    world.ask("barrier: of two", store.barrier, "barrier/two", 2, PATIENCE)
    both.join()
    world.ask("barrier: a third", store.barrier, "barrier/two", 2, SHORT)
    world.ask("barrier: of one", store.barrier, "barrier/one", 1, PATIENCE)
    world.ask("barrier: time-out", store.barrier, "barrier/alone", 2, SHORT)
    world.ask("barrier: again, counted twice", store.barrier, "barrier/alone", 2, SHORT)
    world.ask("barrier: the connection goes on", store.check, ["barrier/none"])
    prefix, peer = dist.PrefixStore("barrier", store), dist.PrefixStore("barrier", other)
    both = threading.Thread(target=lambda: peer.barrier("p", 2, PATIENCE))
    both.start()
    world.ask("barrier: with a prefix", prefix.barrier, "p", 2, PATIENCE)
    both.join()
    world.ask("barrier: with a prefix, time-out", prefix.barrier, "late", 2, SHORT)


def many_clients(world: World) -> None:
    """Each a connection of its own, all at the same keys."""
    added, seen, lock = [], [], threading.Lock()

    def work(rank: int) -> None:
        store = world.connect()
        store.set(f"many/{rank}", str(rank))
        numbers = [store.add("many/count", 1) for _ in range(4)]
        store.wait([f"many/{other}" for other in range(CLIENTS)], PATIENCE)
        values = store.multi_get([f"many/{other}" for other in range(CLIENTS)])
        with lock:
            added.extend(numbers)
            seen.append(values)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.ask("many: each addition once", lambda: sorted(added))
    world.ask("many: all see all", lambda: seen == [[str(rank).encode() for rank in range(CLIENTS)]] * CLIENTS)


def world_sizes(world: World) -> None:
    """Clients say that they are there by adding to a key that is not among their own."""
    store = world.connect()
    keys = store.num_keys()
    world.ask("workers: wait_for_workers", lambda: type(world.connect(world_size=3, wait_for_workers=True)).__name__)
    world.ask("workers: another", lambda: type(world.connect(world_size=3, wait_for_workers=True)).__name__)
    world.ask("workers: counted in one key", lambda: store.num_keys() - keys)
    world.ask("workers: none waits", lambda: type(world.connect(world_size=3, wait_for_workers=False)).__name__)
    world.ask("workers: no world", lambda: type(world.connect(wait_for_workers=True)).__name__)
    world.ask("workers: not among the keys", store.check, ["init/"])
    world.ask("libuvBackend", lambda: store.libuvBackend)
    world.ask("has_extended_api", lambda: store.has_extended_api())


def limits(world: World) -> None:
    """A message above a limit closes the connection that sent it, and no other."""
    store = world.connect()

    def afterwards(send):
        client = world.connect()
        send(client)
        return client.check([])
    world.ask("limits: a key of 8191 bytes", afterwards, lambda client: client.set("k" * 8191, "v"))
    world.ask("limits: a key of 8193 bytes", afterwards, lambda client: client.set("k" * 8192, "v"))
    value = bytes((8 << 20) + 1)
    world.ask("limits: a value of 8 MiB and a byte", afterwards, lambda client: client.set("limit", value))
    keys = [str(n) for n in range(131_073)]
    world.ask("limits: 131073 keys", afterwards, lambda client: client.check(keys))
    world.ask("limits: 131072 keys", afterwards, lambda client: client.check(keys[:-1]))
    world.ask("limits: others go on", store.check, [])


CASES = [get_and_set, time_outs, wakings, numbers, swaps, appends, many_at_once, counts, queues, prefixes, clones,
         barriers, world_sizes, limits, many_clients]


def differences(back_end: str, theirs: dict, ours: dict) -> list[str]:
    intended = {question for by_server in INTENDED.values() for question in by_server.get(back_end, [])}
    lines = []
    for question in theirs | ours:
        # A version that has no such operation was not asked.
        there, here = theirs.get(question, "not asked"), ours.get(question, "not asked")
        if (there == here) == (question in intended):
            what = "intended, but the same" if there == here else "differs"
            lines.append(f"{what} ({back_end}): {question}: PyTorch {str(there)[:300]} · agent {str(here)[:300]}")
    return lines + [f"never asked ({back_end}): {question}" for question in sorted(intended - theirs.keys())]


def main() -> None:
    host, *ports = sys.argv[1:]
    servers, worlds = [], []
    for back_end, port in zip(("libuv", "legacy"), ports, strict=True):
        libuv = back_end == "libuv"
        servers.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=libuv))
        worlds.append((back_end, World("PyTorch's server", "127.0.0.1", servers[-1].port, libuv),
                       World("the agent", host, int(port), libuv)))
    # All at once: much of the time is waiting for what does not come.
    asked = [threading.Thread(target=world.run) for _, *pair in worlds for world in pair]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    found = itertools.chain.from_iterable(differences(name, theirs.answers, ours.answers) for name, theirs, ours in worlds)
    for line in found:
        print(line.encode("unicode_escape").decode(), flush=True)
    compared = sum(len(ours.answers) for _, _, ours in worlds)
    print(f"compared {compared} answers of torch {torch.__version__}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(INTENDED))
    else:
        import torch
        import torch.distributed as dist
        main()
