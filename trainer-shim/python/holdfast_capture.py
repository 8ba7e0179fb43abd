"""Stores that a program opens for itself, on Holdfast.

Imported at the start of every interpreter under ``holdfast-agent run``, by ``holdfast_capture.pth``; ``HOLDFAST_CAPTURE=off``
leaves it out. It waits until the program imports ``torch.distributed``, and then makes each ``TCPStore`` on a port of the
program's own a client of the agent on this host, which serves a namespace of the run for it. ``MASTER_ADDR`` and
``MASTER_PORT`` as ``run`` set them lead to the agent anyway.

Not part of the package ``holdfast``, which has more to load: what does not import PyTorch pays for one look at the names of
its imports.
"""

import os
import sys

WATCHED = "torch.distributed.rendezvous"
"""What is imported last of what is changed; it makes the stores of ``env://`` and ``tcp://``."""

PARAMETERS = (
    "host_name", "port", "world_size", "is_master", "timeout",
    "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)
"""Of ``TCPStore``, in their order."""

TIMEOUT_DEFAULT = 300.0
"""Seconds that a ``TCPStore`` waits, if nothing is said."""

RETRY_PAUSE = 0.2
"""Seconds until an agent that is being replaced is asked again."""

ANSWER_BYTES_MAX = 64 * 1024

SILENCE_SAID_AFTER = 5.0
"""Seconds without an answer of the agent until it is said that a store waits for it."""

FILE_NAME_MAX = 200
"""Characters of a file's name that are shown."""

LOCAL_NAMES = ("", "localhost", "localhost.localdomain", "ip6-localhost")
"""Names of this host's loopback. Its addresses mean the same, and so do those that stand for every interface."""

STARTED_WITH = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
"""The address that the launcher of this process told it."""


class Finder:
    """Finds nothing itself. Whoever finds the watched module loads it, and then it is changed."""

    def find_spec(self, name, path=None, target=None):
        if name != WATCHED:
            return None
        for finder in list(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader)
                return spec
        return None


class Loader:
    """The module's own loader, and a change once it has loaded."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create else None

    def exec_module(self, module):
        # What asks for the source later finds the loader that it would find without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        attempt(change, module)


def attempt(function, *arguments):
    """No defect of this module ends a program."""
    try:
        function(*arguments)
    except Exception as error:
        say(f"stores that this program opens for itself are not on Holdfast: {type(error).__name__}: {error}")


def say(text):
    if sys.stderr is None:
        return
    try:
        print(f"holdfast: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # Nobody reads it.
        pass


def change(rendezvous):
    """Changes PyTorch's class in place, so that every name for it, and every class made from it, is the changed one."""
    import threading
    import weakref

    from torch._C._distributed_c10d import FileStore, TCPStore

    if getattr(TCPStore.__init__, "holdfast_original", None) is not None:
        return
    # All that is changed is looked up first: a PyTorch that lacks a part of it stays as it is.
    original, of_file = TCPStore.__init__, FileStore.__init__
    names, places, formed = weakref.WeakKeyDictionary(), {}, {}
    host, port = TCPStore.host.fget, TCPStore.port.fget
    create, uses_agent = rendezvous._create_c10d_store, rendezvous._torchelastic_use_agent_store

    def __init__(self, *args, **kwargs):
        wanted = Wanted.read(args, kwargs)
        if wanted is None:
            return original(self, *args, **kwargs)
        with wanted.asked() as store:
            if store.is_agent and getattr(own, "creates", False):
                note_group(formed, wanted, store)
            original(self, **store.arguments())
            wanted.taken_over()
            names[self] = places[host(self), port(self)] = (wanted.host, store.port)
            if not store.is_agent:
                store.wait_for_workers()

    __init__.__doc__ = original.__doc__
    __init__.holdfast_original = original
    TCPStore.__init__ = __init__

    def name_of(self):
        try:
            return names[self]
        except (KeyError, TypeError):
            # `clone()` and `underlying_store` are other objects for it.
            place = host(self), port(self)
            return places.get(place, place)

    TCPStore.host = property(lambda self: name_of(self)[0], doc=TCPStore.host.__doc__)
    TCPStore.port = property(lambda self: name_of(self)[1], doc=TCPStore.port.__doc__)
    # Rank 0 of a store that is the program's own is its master: only the agent's has none.
    own = threading.local()

    def _create_c10d_store(*args, **kwargs):
        own.creates = not (of_launcher(*args[:2]) or is_beyond_reach(*args[:2]))
        try:
            return create(*args, **kwargs)
        finally:
            own.creates = False

    def _torchelastic_use_agent_store():
        return not (getattr(own, "creates", False) and control()) and uses_agent()

    _create_c10d_store.__doc__ = create.__doc__
    rendezvous._create_c10d_store = _create_c10d_store
    rendezvous._torchelastic_use_agent_store = _torchelastic_use_agent_store
    FileStore.__init__ = named(of_file)


def named(original):
    """A store in a file stays one, and the program is told so once."""
    told = []

    def __init__(self, *args, **kwargs):
        if control() and not told:
            told.append(True)
            path = str(kwargs.get("file_name", args[0] if args else ""))[:FILE_NAME_MAX]
            say(
                f"process {os.getpid()} opens FileStore({path!r}), as init_method=\"file://…\" does: that store is not on "
                "Holdfast, and reads what an earlier launch has left in the file; use "
                "init_process_group(init_method=\"env://\", rank=…, world_size=…), or "
                "TCPStore(host, port, is_master=rank == 0) (HOLDFAST_CAPTURE=off keeps silent about it)"
            )
        return original(self, *args, **kwargs)

    __init__.__doc__ = original.__doc__
    return __init__


def note_group(formed, wanted, store):
    """Says once that the process group of a store is formed again at the agent's port, by a process that has let go of the
    one before. Where it has not, as with a model that still holds it, rank 0 of PyTorch serves the same store again, too."""
    process, port = os.getpid(), store.connected_port
    # A process that was forked has formed none itself.
    if formed.get("process") != process:
        formed.update(process=process, ports=set(), told=False)
    if port in formed["ports"] and not formed["told"] and not is_connected(port):
        formed["told"] = True
        say(
            f"process {process} forms a process group again at {wanted}, where the keys of the one before still are: its ranks "
            "may connect to addresses that are gone, and fail or hang (without Holdfast, rank 0 would serve an empty store); "
            "give each group after the first a port of its own: MASTER_PORT + 1, MASTER_PORT + 2, …"
        )
    formed["ports"].add(port)


def is_connected(port):
    """Whether this process has a connection to this port. What cannot be seen may be one."""
    try:
        sockets, tables = set(), 0
        for name in os.listdir("/proc/self/fd"):
            try:
                sockets.add(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                # Closed since.
                pass
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            if not os.path.exists(table):
                continue
            with open(table, "rb") as lines:
                tables += 1
                next(lines)
                for line in lines:
                    fields = line.decode("ascii").split()
                    if int(fields[2].rpartition(":")[2], 16) == port and f"socket:[{fields[9]}]" in sockets:
                        return True
    except Exception:
        return True
    return tables == 0


def of_launcher(host=None, port=None):
    """Whether this is the store that torchrun has opened for its ranks, which makes none of them its master."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or None in STARTED_WITH:
        return False
    return is_same((host, port), STARTED_WITH)


def is_beyond_reach(host=None, port=None):
    """Whether this is the agent's own port, in a place without the folder of its control socket, as in a container that has
    not mounted it. The port needs nobody who asks there."""
    socket = control()
    if not socket or os.path.isdir(os.path.dirname(socket) or "."):
        return False
    # A program that sets the address for itself leaves these as `run` has set them.
    own = os.environ.get("PET_MASTER_ADDR"), os.environ.get("PET_MASTER_PORT")
    return None not in own and is_same((host, port), own)


def is_same(one, other):
    return (meaning(one[0]), str(one[1])) == (meaning(other[0]), str(other[1]))


def meaning(host):
    """The host as the agent compares it, to which all names of this host's loopback are one."""
    import ipaddress

    host = str(host).strip("[]").lower()
    if host in LOCAL_NAMES:
        return "localhost"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    return "localhost" if address.is_loopback or address.is_unspecified else str(address)


class Wanted:
    """A store as a program asks for it."""

    def __init__(self, given):
        self._given = given
        self.host, self.port = given["host_name"], int(given["port"])
        self.control = control()
        self.is_master = bool(given.get("is_master", False))
        timeout = given.get("timeout")
        self.timeout = TIMEOUT_DEFAULT if timeout is None else max(seconds_of(timeout), 0.001)

    @classmethod
    def read(cls, args, kwargs):
        """None if this is nothing for the agent: PyTorch then says what is wrong with it."""
        given = dict(zip(PARAMETERS, args), **kwargs)
        fits = len(args) <= len(PARAMETERS) and not set(kwargs) & set(PARAMETERS[:len(args)])
        if not control() or not fits or set(given) - set(PARAMETERS):
            return None
        try:
            wanted = cls(given)
            fits = isinstance(wanted.host, str) and 0 <= wanted.port <= 0xFFFF
            fits = fits and not is_beyond_reach(wanted.host, wanted.port)
            if fits:
                wanted.host.encode()
            listening = given.get("master_listen_fd")
            if fits and wanted.is_master and wanted.port == 0 and listening is not None:
                wanted.port = port_of(listening)
        except Exception as error:
            say(f"a store that this program opens is left to PyTorch: {type(error).__name__}: {error}")
            return None
        return wanted if fits else None

    def asked(self):
        """Asks the agent for it. The store stays open for this program until the block ends, and then for as long as it is
        connected."""
        import json
        import socket
        import time

        began = time.monotonic()
        ends_at, said = began + self.timeout, False
        request = {
            "host": self.host,
            "port": self.port,
            "is_master": self.is_master,
            "multi_tenant": bool(self._given.get("multi_tenant", False)),
            "of_launcher": not self.is_master and of_launcher(self.host, self.port),
            **launch_of(os.environ),
        }
        while True:
            left = max(ends_at - time.monotonic(), 0.001)
            request["timeout_ms"] = max(int(left * 1000), 1)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # The agent itself tells when the time is over.
                connection.settimeout(left + 30)
                connection.connect(self.control)
                answer = ask(json, connection, {"store": request})
            except OSError as error:
                connection.close()
                if time.monotonic() >= ends_at:
                    raise failed(f"the agent at {self.control} does not answer for the store {self}: {error}") from None
                if isinstance(error, PermissionError):
                    raise failed(f"the agent at {self.control} is another user's: {error}") from None
                if not said and time.monotonic() - began >= SILENCE_SAID_AFTER:
                    said = True
                    say(f"the store {self} waits for the agent at {self.control}, {self.timeout:g} s at most: {error}")
                time.sleep(RETRY_PAUSE)
                continue
            except BaseException:
                connection.close()
                raise
            if "store" not in answer:
                connection.close()
                raise failed(refusal(answer))
            return Store(self, self._given, connection, answer["store"], ends_at)

    def taken_over(self):
        """PyTorch's server would own the socket that it was given; nobody serves there now."""
        listening = self._given.get("master_listen_fd")
        if self.is_master and listening is not None and listening >= 0:
            os.close(listening)

    def __str__(self):
        return f"{self.host}:{self.port}"


class Store:
    """The agent's answer, and the connection that keeps the store open meanwhile."""

    def __init__(self, wanted, given, connection, served, ends_at):
        self._wanted, self._given, self._connection, self._ends_at = wanted, given, connection, ends_at
        self._host, _, port = served["address"].rpartition(":")
        self.connected_port = int(port)
        self.port, self.is_agent = served["port"], served["is_agent"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()

    def arguments(self):
        """Those for PyTorch: a client of the agent."""
        given = dict(self._given, host_name=self._host.strip("[]"), port=self.connected_port, is_master=False)
        for name in ("master_listen_fd", "multi_tenant"):
            given.pop(name, None)
        return given

    def wait_for_workers(self):
        """A master's constructor ends when all workers are there."""
        import json
        import time

        workers = self._given.get("world_size")
        if not (self._wanted.is_master and self._given.get("wait_for_workers", True) and workers is not None and workers > 0):
            return
        left = max(self._ends_at - time.monotonic(), 0.001)
        self._connection.settimeout(left + 30)
        try:
            answer = ask(json, self._connection, {"workers": {"workers": int(workers), "timeout_ms": int(left * 1000)}})
        except OSError as error:
            raise failed(f"the agent ended while the store {self._wanted} waited for its workers: {error}") from None
        if "come" not in answer:
            raise failed(f"the store {self._wanted}: {refusal(answer)}")


def control():
    """The agent's control socket; none if there is no agent, or stores are left to PyTorch."""
    return os.environ.get("HOLDFAST_CONTROL") if os.environ.get("HOLDFAST_CAPTURE") != "off" else None


def ask(json, connection, request):
    connection.sendall(json.dumps(request).encode() + b"\n")
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(4096)
        if not part or len(line) > ANSWER_BYTES_MAX:
            raise OSError("the connection ended before the answer")
        line += part
    return json.loads(line)


def refusal(answer):
    if "refused" in answer:
        return answer["refused"]["reason"]
    return f"the agent answered {next(iter(answer), None)}; its version and this one's do not fit"


def failed(text):
    """As PyTorch's own failures to open a store."""
    from torch.distributed import DistNetworkError

    return DistNetworkError(f"holdfast: {text} (HOLDFAST_CAPTURE=off leaves such stores to PyTorch)")


def launch_of(variables):
    """The namespace that a launcher opened for this rank, else the restart in place that torchrun started it in. torchrun
    itself, and what knows none, is of none."""
    count, namespace = variables.get("TORCHELASTIC_RESTART_COUNT", ""), variables.get("HOLDFAST_NAMESPACE")
    if namespace:
        return {"namespace": namespace}
    return {"attempt": int(count)} if "TORCHELASTIC_RUN_ID" in variables and count.isdecimal() else {}


def seconds_of(timeout):
    """PyTorch takes a ``timedelta``, or seconds."""
    return float(timeout) if isinstance(timeout, (int, float)) else timeout.total_seconds()


def port_of(descriptor):
    """The port at which a socket listens. The program keeps it."""
    import socket

    with socket.socket(fileno=os.dup(descriptor)) as listening:
        return listening.getsockname()[1]


def mark():
    """For ``holdfast-agent run``, which looks for programs that bypass Holdfast: this process does not. What it starts may
    have another Python, so that it says which process it is."""
    os.environ["HOLDFAST_CAPTURE"] = str(os.getpid())


def mark_forked():
    """The same in a process that was forked, unless its program has switched the capture off since."""
    if os.environ.get("HOLDFAST_CAPTURE") != "off":
        mark()


def install():
    mark()
    os.register_at_fork(after_in_child=mark_forked)
    if WATCHED in sys.modules:
        change(sys.modules[WATCHED])
    else:
        sys.meta_path.insert(0, Finder())


attempt(install)
