"""The agent on this host, for a launcher: the one that ``holdfast-agent run`` started, or one of its
own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from typing import Any, Optional

ANSWER_TIME_MAX = 60.0
"""How long the agent may take to answer, in seconds: it asks nobody."""

LINE_BYTES_MAX = 64 * 1024

HOLD = 'printf "%s\\n" "$HOLDFAST_CONTROL" && exec cat'
"""What keeps an agent: it says where the agent is, and ends with the pipe to its launcher."""


class AgentError(Exception):
    """The agent is not there, or does not do what it is asked."""


class Agent:
    """A connection to the agent; the agent stays for as long as this object, at most as long as the
    program."""

    def __init__(self, control: str, holder: Optional[subprocess.Popen[str]] = None) -> None:
        self._control, self._holder = control, holder
        self._stay = _connect(control)
        attached = _ask(self._stay, {"attach": {}}, "attached")
        self.job: str = attached["job"]
        self.run: str = attached["run"]
        self.host, self.port = _address(attached["address"])

    @classmethod
    def find(cls, store: str, job: str, run: str) -> Agent:
        """The agent that ``HOLDFAST_CONTROL`` names, else one for this run of this job."""
        control = os.environ.get("HOLDFAST_CONTROL")
        if control:
            return cls(control)
        program = os.environ.get("HOLDFAST_AGENT") or shutil.which("holdfast-agent")
        if not program:
            raise AgentError(
                "there is no holdfast-agent on the PATH of this host: install it, or name it with HOLDFAST_AGENT, "
                "or start this under `holdfast-agent run`"
            )
        command = [program, "run", "--store", store, "--job", job, "--run", run, "--keep-master-addr"]
        command += ["--expect-clients-within", "0s", "--", "/bin/sh", "-c", HOLD]
        # Out of the terminal's group: Ctrl-C is for the launcher, which still needs the store.
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        control = holder.stdout.readline().strip() if holder.stdout else ""
        if not control:
            raise AgentError(f"holdfast-agent ended with exit code {holder.wait()} before it served; it said why above")
        try:
            return cls(control, holder)
        except AgentError:
            holder.kill()
            raise

    def open(self, name: str) -> int:
        """The port of a namespace of the run: the same keys under this name on every host."""
        with _connect(self._control) as connection:
            opened = _ask(connection, {"open": {"name": name}}, "opened")
        return _address(opened["address"])[1]


def _connect(control: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_TIME_MAX)
    try:
        connection.connect(control)
    except OSError as error:
        connection.close()
        raise AgentError(f"no agent answers at {control}: {error}") from error
    return connection


def _ask(connection: socket.socket, request: dict[str, Any], wanted: str) -> dict[str, Any]:
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(4096)
            if not part or len(line) > LINE_BYTES_MAX:
                raise AgentError("the agent ended before it answered")
            line += part
        [(kind, body)] = json.loads(line).items()
    except (OSError, ValueError) as error:
        raise AgentError(f"the agent does not answer: {error}") from error
    if kind == "refused":
        raise AgentError(body["reason"])
    if kind != wanted:
        raise AgentError(f"the agent answered {kind}, not {wanted}; its version and this one's do not fit")
    return body


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
