"""What a join says to the native half: what was given, and else what the environment says."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

from . import _arguments as arguments
from . import _holdfast
from ._errors import Refused
from ._policy import Assignment


def wanted(
    numbers: Mapping[str, Any],
    *,
    job: Optional[str],
    run: Optional[str],
    process: Union[int, Literal["any"], None],
    role: str,
    labels: Optional[Mapping[str, str]],
    takeover: bool,
    open_run: bool,
    store: Optional[str],
    token_file: Optional[Union[str, os.PathLike[str]]],
    tls_ca: Optional[Union[str, os.PathLike[str]]],
    tls_cert: Optional[Union[str, os.PathLike[str]]],
    tls_key: Optional[Union[str, os.PathLike[str]]],
    host: Optional[str],
    ttl: float,
    timeout: float,
) -> dict[str, Any]:
    """The arguments of :meth:`Job.join`, checked; ``numbers``: those of the policy, by their names."""
    standby = arguments.choice("role", role, ("active", "standby")) == "standby"
    takeover, open_run = arguments.flag("takeover", takeover), arguments.flag("open_run", open_run)
    store = arguments.text_or_none("store", store)
    control = None if store or open_run else os.environ.get("HOLDFAST_CONTROL") or None
    store = store or os.environ.get("HOLDFAST_STORE")
    if not store and not control:
        text = (
            "no store: give store=, or set HOLDFAST_STORE to host:port of its nodes, separated by commas, "
            "or start this under `holdfast-agent run`"
        )
        raise Refused(text, "invalid_request", False, "none")
    token = _file("token_file", token_file, "HOLDFAST_TOKEN_FILE", control)
    any_number = isinstance(process, str) and process == "any"
    return {
        "control": control,
        "store": store or "",
        "token_file": token,
        "tls_ca": _file("tls_ca", tls_ca, "HOLDFAST_TLS_CA", control),
        "tls_cert": _file("tls_cert", tls_cert, "HOLDFAST_TLS_CERT", control),
        "tls_key": _file("tls_key", tls_key, "HOLDFAST_TLS_KEY", control),
        "job": arguments.text_or_none("job", job) or os.environ.get("HOLDFAST_JOB") or None,
        "run": arguments.text_or_none("run", run) or os.environ.get("HOLDFAST_RUN") or None,
        "host": arguments.text_or_none("host", host) or socket.gethostname(),
        "ttl": arguments.seconds("ttl", ttl),
        "patience": arguments.seconds("timeout", timeout),
        "process": None if any_number else _number("process", process, "RANK"),
        "standby": standby,
        "labels": arguments.labels("labels", labels),
        "policy": {
            "world": _number("world", numbers["world"], "WORLD_SIZE") or 0,
            "members_min": arguments.whole("members_min", numbers["members_min"]),
            "last_call": arguments.seconds("last_call", numbers["last_call"]),
            "assignment": _assignment(numbers["assignment"]),
            "active_min": arguments.whole("active_min", numbers["active_min"]),
            "restarts_max": arguments.whole("restarts_max", numbers["restarts_max"]),
            "restarts_window": arguments.seconds_or_never("restarts_window", numbers["restarts_window"]),
        },
        "takeover": takeover,
        "open_run": open_run,
        "heartbeat": arguments.seconds("heartbeat", numbers["heartbeat"]),
        "soft_timeout": arguments.seconds_or_never("soft_timeout", numbers["soft_timeout"]),
        "hard_timeout": arguments.seconds_or_never("hard_timeout", numbers["hard_timeout"]),
        "grace": arguments.seconds("grace", numbers["grace"]),
        "main_thread_timeout": arguments.seconds_or_never(
            "main_thread_timeout", numbers["main_thread_timeout"]
        ),
        "on_silence": arguments.callable_or_none("on_silence", numbers["on_silence"]),
    }


def _number(what: str, given: Optional[int], variable: str) -> Optional[int]:
    """What was given, or else what the environment says."""
    if given is not None:
        return arguments.whole(what, given, also=" or 'any'" if what == "process" else "")
    text = os.environ.get(variable)
    if not text:
        return None
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else text
    if isinstance(number, str):
        arguments.refuse(f"the environment variable {variable}", text, "a whole number")
    return arguments.whole(f"the environment variable {variable}", number)


def _assignment(given: Union[Assignment, Sequence[Mapping[str, Any]]]) -> str:
    steps = arguments.steps("assignment", given)
    try:
        written = json.dumps(steps)
    except (TypeError, ValueError, RecursionError):
        arguments.wrong_type("assignment", steps, "a list of steps of str, int, list and dict alone")
    _holdfast.check_assignment(written)
    return written


def _file(
    name: str, given: Optional[Union[str, os.PathLike[str]]], variable: str, control: Optional[str]
) -> Optional[str]:
    """The path of a file that must be readable; one of the environment only where no agent reads it."""
    if given is not None:
        return arguments.readable(name, given)
    path = os.environ.get(variable) or None
    return arguments.readable(f"the environment variable {variable}", path) if path and not control else path
