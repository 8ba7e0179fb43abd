"""Every argument of every public call of the package, with values that it cannot be, made from the signatures
alone. Each is refused at once by an error that names the argument, and nothing else happens."""
import collections.abc
import dataclasses
import datetime
import enum
import importlib
import importlib.util
import inspect
import logging
import os
import tempfile
import time
import typing

import holdfast

# Two seconds, and room for a slow machine: long before anybody could have been asked in vain.
SECONDS_MAX = 10
ERRORS = (TypeError, ValueError, holdfast.HoldfastError)


class Strange:
    """A value of a type that nobody expects, which does not even say what it is."""

    def __repr__(self):
        raise RuntimeError("this one cannot be shown")


ANYTHING = [Strange(), None, True, -1, 7, 2**70, -0.5, 1.5, float("nan"), float("inf"), 1e300]
ANYTHING += ["", "\ud800", "one two/three", "x" * 100_000, b"\xff", [], [7], {7: 7}, {"a": 7}, (), set(), len, enum.Enum]
ANYTHING += [datetime.timedelta(seconds=1)]


def fits(value, hint):
    """Whether a type hint allows a value; numbers within the range that all calls have."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if hint in (int, float):
        kinds = (int, float) if hint is float else int
        return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value < (10**9 if hint is float else 2**32)
    if hint is str:
        return isinstance(value, str) and value.isascii()
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Sequence:
        return isinstance(value, (list, tuple)) and all(fits(one, inner[0]) for one in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, dict) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if hint is typing.Any:
        return True
    return isinstance(value, origin or hint)


def valid(hint, token):
    """Some value that a required argument can have."""
    return next(value for value in (True, "x", b"x", 1, 1.0, token, print) if fits(value, hint))


def refused(name, call, arguments):
    began = time.monotonic()
    try:
        done = call(**arguments)
        if hasattr(done, "__enter__"):
            with done:
                pass
    except ERRORS as error:
        assert name in str(error), (call, arguments, error)
    else:
        raise AssertionError(f"{call} took {arguments}")
    assert time.monotonic() - began < SECONDS_MAX, (call, arguments)


def check(call, others, words=()):
    """Refuses all that is wrong of each argument, and names that it has not; answers how many."""
    count = 0
    hints = typing.get_type_hints(call)
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            hints = typing.get_type_hints(holdfast.Policy)
            for field in dataclasses.fields(holdfast.Policy):
                for value in [value for value in ANYTHING if not fits(value, hints[field.name])]:
                    # Of those in the signature none stands for what the policy says.
                    if value is not None or field.name not in inspect.signature(call).parameters:
                        refused(field.name, call, {**others, field.name: value})
                    refused(field.name, call, {**others, "policy": holdfast.Policy(**{field.name: value})})
                    count += 2
            continue
        wrong = [value for value in ANYTHING if not fits(value, hints[name])]
        if name == "amount":
            wrong.remove(-1)
        if name in words:
            # One of some words, and no other.
            wrong += ["and or", "ACTIVE"]
        for value in wrong:
            refused(name, call, {**others, name: value})
        given = dict(others)
        refused(name[:-1], call, {**given, name[:-1]: given.pop(name, 1)})
        count += len(wrong) + 1
    return count


def calls(job, token):
    """The public functions, with what they have to be given."""
    def required(call):
        hints = typing.get_type_hints(call)
        needed = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty or one.name == "value"]
        return {one.name: valid(hints[one.name], token) for one in needed}

    yield holdfast.Job.join, {"job": "arguments", "process": "any"}
    yield holdfast.RestartPolicy, {}
    for name, _ in inspect.getmembers(holdfast.Job, callable):
        call = getattr(job, name)
        if not name.startswith("_") and name != "join":
            yield call, required(call)
    for name, _ in inspect.getmembers(holdfast.Keys, callable):
        if not name.startswith("_"):
            yield getattr(job.kv, name), required(getattr(job.kv, name))
    if importlib.util.find_spec("torch"):
        group_store = importlib.import_module("holdfast.torch").group_store
        yield group_store, required(group_store)


def main():
    os.environ["HOLDFAST_TCPSTORE"] = "127.0.0.1:1"
    os.environ["HOLDFAST_TOKENFILE"] = "/somewhere"
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("holdfast").addHandler(handler)
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for strange in (pipe, folder, "/dev/zero"):
            refused("token_file", holdfast.Job.join, {"job": "arguments", "token_file": strange})
    with holdfast.Job.join("arguments", process=0, world=1, ttl=90) as job:
        job.advance(timeout=60)
        token = str(job.fence())
        seen = 0
        for call, others in calls(job, token):
            count = check(call, others, words=("rule", "role", "among"))
            print(call.__qualname__, count, flush=True)
            seen += count
        assert seen > 300, seen
        for wrong in ({"job": "a/b"}, {"run": "a b"}, {"store": "nonsense"}, {"assignment": [{"divisable_by": 8}]}):
            refused(next(iter(wrong)), holdfast.Job.join, {"job": "arguments", **wrong})
        refused("fence", job.check, {"fence": "no token"})
        ignored = [line for line in said if "HOLDFAST_TOKENFILE is ignored" in line]
        assert len(ignored) == 1 and "did you mean HOLDFAST_TOKEN_FILE?" in ignored[0], said

        # Nothing has happened: nobody came, and no other job was made.
        assert [member.process for member in job.alive()] == [0]
        kinds = [event.kind for event in job.events()]
        assert kinds == ["registered", "advanced"], kinds
        assert job.iteration() == (1, True) and job.waiting("x") == ()
        assert os.listdir(".") == [], os.listdir(".")
    print("all good", flush=True)


main()
