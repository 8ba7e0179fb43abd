"""How a process group finds its sockets, and the agent: no lock on a file is given up for that."""
import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile

from holdfast import _sockets

LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

with tempfile.NamedTemporaryFile("w") as file, socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    fcntl.lockf(file, fcntl.LOCK_EX)
    assert listener.getsockname() in _sockets.listening()
    assert _sockets.cut({listener.getsockname()}) == 0
    tried = subprocess.run([sys.executable, "-c", LOCK, file.name], stderr=subprocess.PIPE, text=True)
    assert tried.returncode != 0 and "BlockingIOError" in tried.stderr, tried

if importlib.util.find_spec("torch"):
    from holdfast.torch import address

    for told, found in [
        ("127.0.0.1:29500", ("127.0.0.1", 29500)),
        ("127.0.0.1:29500-29510", ("127.0.0.1", 29500)),
        ("[::1]:29500,127.0.0.1:29501", ("::1", 29500)),
    ]:
        os.environ["HOLDFAST_TCPSTORE"] = told
        assert address() == found, (told, address())

print("all good")
