"""Failpoints: places between two I/O calls at which a test kills, stops, delays or breaks its own process.

``EPOCHLINE_FAILPOINT`` names one or more, separated by commas, each as ``NAME[@N]:ACTION[:once]``. With ``@N`` the
action runs only the Nth time that this process passes the name. With ``once`` it runs in the first process that passes
the name, and in no later one; so the retry of a task succeeds. Actions:

- ``exit``: end at once with code 137, as by SIGKILL, without cleaning up;
- ``stop``: send SIGSTOP to itself; SIGCONT resumes it;
- ``raise``: raise an unexpected error;
- ``sleep:SECONDS``.

A process with a failpoint works on no ledger whose server does not have ``epochline.failpoints = allowed`` in its
settings, as servers of tests and of drills have. Before each action, its ``NAME`` is written as a line into the file
that ``EPOCHLINE_FAILPOINT_RECORD`` names. An installation with ``EPOCHLINE_FAILPOINTS=forbidden`` refuses to run with a
failpoint.

Every call of a use case, a module of `epochline.coordinator`, on a port is a failpoint. It is named
``MODULE.PORT.METHOD`` (``commit.chain.advance``), where ports are the sides of a transaction, ``source`` and ``sink``.
A transaction has ``MODULE.transaction`` (before it is opened), ``MODULE.commit`` (before its COMMIT) and
``MODULE.committed`` (after it). The second call of the same name in a module, in the order of the text, ends in ``.2``,
and so on, so that each name is unique. What a use case calls its variables does not matter.
"""

from __future__ import annotations

import ast
import difflib
import fcntl
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from epochline.errors import ConfigurationError

if TYPE_CHECKING:
    from epochline.ports import Ledger, OffsetSource, Transaction

NAMED = "EPOCHLINE_FAILPOINT"
RECORD = "EPOCHLINE_FAILPOINT_RECORD"
SWITCH = "EPOCHLINE_FAILPOINTS"

ALLOWING = "epochline.failpoints"
"""The setting of a PostgreSQL server, or of a database, that lets a process with a failpoint work: ``allowed``."""

KILLED = 137
"""Exit code of ``exit``, as a shell shows it after SIGKILL."""

_SYNTAX = re.compile(r"([\w.]+)(?:@([1-9]\d*))?:(exit|stop|raise|sleep:(\d+(?:\.\d+)?))(:once)?")
"""Name, number of the pass, action with its seconds, and ``once``."""


class FailpointError(Exception):
    """Raised by the action ``raise``. It is not an `EpochlineError`, because it stands for an unexpected error."""


@dataclass(frozen=True, slots=True)
class _Fault:
    name: str
    nth: int | None
    action: str
    seconds: float
    once: bool


class _Armed:
    """The faults that an environment names. They are parsed at first use, so that the caller sees a mistake."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._text = environment.get(NAMED, "").strip()
        record = environment.get(RECORD)
        self._record = Path(record) if record else None
        # Any value of the switch forbids failpoints, so that a typo does not allow them.
        self._forbidden = bool(environment.get(SWITCH))
        self._passed: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._text)

    @cached_property
    def faults(self) -> Sequence[_Fault]:
        if self._forbidden:
            raise ConfigurationError(
                f"{SWITCH} forbids failpoints here, but {NAMED} is set ({self._text!r}). Nothing was done. Unset"
                f" {NAMED}."
            )
        faults = [_parse(text.strip()) for text in self._text.split(",")]
        if self._record is None and any(fault.once for fault in faults):
            raise ConfigurationError(f"{NAMED}: `once` needs {RECORD}, a file that records past actions.")
        return faults

    def passing(self, name: str) -> None:
        self._passed[name] += 1
        for fault in self.faults:
            if fault.name == name and fault.nth in (None, self._passed[name]) and self._write_record(fault):
                _act(fault)

    def _write_record(self, fault: _Fault) -> bool:
        """Record the action. Returns False if it ran before and must not run again."""
        if self._record is None:
            return True
        with self._record.open("a+") as record:
            fcntl.flock(record, fcntl.LOCK_EX)
            record.seek(0)
            if fault.once and fault.name in record.read().split():
                return False
            record.write(f"{fault.name}\n")
        return True


def _parse(text: str) -> _Fault:
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{NAMED}: {text!r} cannot be parsed; write NAME[@N]:ACTION[:once], where ACTION is exit, stop, raise or"
            " sleep:SECONDS."
        )
    name, nth, action, seconds, once = match.groups()
    if name not in known_failpoints():
        near = difflib.get_close_matches(name, known_failpoints(), n=5, cutoff=0.4)
        raise ConfigurationError(f"{NAMED}: there is no failpoint {name!r}; near it: {', '.join(near) or 'none'}.")
    return _Fault(name, int(nth) if nth else None, action.partition(":")[0], float(seconds or 0), bool(once))


def _act(fault: _Fault) -> None:
    match fault.action:
        case "exit":
            os._exit(KILLED)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(fault.seconds)
        case _:
            raise FailpointError(f"failpoint {fault.name}")


_armed = _Armed(os.environ)


def arm(environment: Mapping[str, str]) -> None:
    """Replace the failpoints of this process by those of an environment. The import arms those of `os.environ`."""
    global _armed
    _armed = _Armed(environment)


def armed() -> bool:
    """Whether the environment names a failpoint.

    Raises:
        ConfigurationError: failpoints are forbidden here, or the failpoint does not exist.
    """
    return bool(_armed and _armed.faults)


def refuse_here(allowed: str | None) -> None:
    """Refuse a transaction of a process with a failpoint; ``allowed`` is what the database has for `ALLOWING`.

    Raises:
        ConfigurationError: as for `armed`, or the database allows no failpoints.
    """
    if armed() and allowed != "allowed":
        raise ConfigurationError(
            f"{NAMED} is set ({_armed._text!r}), and this database allows no failpoints. Nothing was done. Unset"
            f" {NAMED}. Servers of tests and of drills have the setting {ALLOWING} = 'allowed'."
        )


def failpoint(name: str) -> None:
    """Run the action that the environment names for this failpoint. Without one, this only reads a variable.

    Raises:
        FailpointError: the action is ``raise``.
        ConfigurationError: as for `armed`.
    """
    if _armed:
        _armed.passing(name)


Position = tuple[int, int]
"""Line and column at which a call's text ends. Both the syntax tree and a running frame have it."""

_PACKAGE = Path(__file__).parent
USE_CASES = _PACKAGE / "coordinator"
BY_HAND = (
    _PACKAGE / "spark",
    *(_PACKAGE / "postgres" / "ledger" / f"{module}.py" for module in ("attempt_plan", "job_session", "parts")),
    _PACKAGE / "kafka" / "sending.py",
    _PACKAGE / "sinks",
)
"""Code that calls servers directly and names its failpoints: the job, its writers, the sender and the sinks."""


@cache
def _methods() -> tuple[frozenset[str], Mapping[str, str]]:
    """The sides of a transaction, and the port of each method of a ledger, source or sink."""
    # Imported here: a Spark worker loads this package without the declarations.
    from epochline import ports

    def public(*protocols: type) -> list[str]:
        return [name for protocol in protocols for name in vars(protocol) if not name.startswith("_")]

    methods = dict.fromkeys(public(*ports.SINK), "sink.") | dict.fromkeys(public(ports.OffsetSource), "source.")
    return frozenset(public(ports.Transaction)), methods | {"transaction": ""}


def port_method(call: ast.Call) -> str | None:
    """The port's method that a call calls, such as ``chain.advance``, ``source.look`` or ``transaction``, or None."""
    sides, methods = _methods()
    match call.func:
        case ast.Attribute(attr=method, value=ast.Attribute(attr=side)) if side in sides:
            return f"{side}.{method}"
        case ast.Attribute(attr=method, value=ast.Name()) if method in methods:
            return f"{methods[method]}{method}"
    return None


@cache
def calls_of(module: Path) -> Mapping[Position, tuple[str, ...]]:
    """The failpoints of each call of one use case on a port, by the position of the call's end.

    A call has one name. A transaction has three.
    """
    calls = sorted(
        (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)),
        key=lambda call: (call.lineno, call.col_offset),
    )
    seen: Counter[str] = Counter()
    names = {}
    for call in calls:
        method = port_method(call)
        if method is not None:
            seen[method] += 1
            number = f".{seen[method]}" if seen[method] > 1 else ""
            places = ("transaction", "commit", "committed") if method == "transaction" else (method,)
            position = call.end_lineno or 0, call.end_col_offset or 0
            names[position] = tuple(f"{module.stem}.{place}{number}" for place in places)
    return names


def use_cases() -> list[Path]:
    """The modules that hold a use case."""
    return sorted(path for path in USE_CASES.glob("*.py") if path.stem != "__init__")


def named_by_hand() -> Iterator[str]:
    """The names in every ``failpoint("…")`` of `BY_HAND`."""
    for path in BY_HAND:
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(module.read_text())):
                match node:
                    case ast.Call(func=ast.Name(id="failpoint"), args=[ast.Constant(value=str(name))]):
                        yield name


@cache
def known_failpoints() -> frozenset[str]:
    """The names of all failpoints."""
    by_port = {name for module in use_cases() for names in calls_of(module).values() for name in names}
    return frozenset(by_port | set(named_by_hand()))


def watched(ledger: Ledger) -> Ledger:
    """The ledger, with failpoints if the environment names one; raises what `armed` raises."""
    return _WatchedLedger(ledger) if armed() else ledger


def watched_source(source: OffsetSource) -> OffsetSource:
    """The source, with failpoints if the environment names one; raises what `armed` raises."""
    return cast("OffsetSource", _WatchedPort(source)) if armed() else source


class _WatchedPort:
    """A port whose methods first pass the failpoint of their caller."""

    def __init__(self, port: object) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._port, name)

        def call(*args: Any, **options: Any) -> Any:
            for place in _places(sys._getframe(1)):
                failpoint(place)
            return method(*args, **options)

        return call


class _WatchedTransaction:
    """A transaction whose sides have failpoints."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, side: str) -> _WatchedPort:
        return _WatchedPort(getattr(self._transaction, side))


class _WatchedLedger:
    """A ledger with failpoints before a transaction, before its COMMIT and after it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def sink(self, *declared: Any) -> Any:
        return _WatchedPort(self._ledger.sink(*declared))

    def transaction(self) -> AbstractContextManager[Transaction]:
        places = _places(sys._getframe(1))
        return self._transaction(*places) if places else self._ledger.transaction()

    @contextmanager
    def _transaction(self, before: str, commit: str, committed: str) -> Iterator[Transaction]:
        failpoint(before)
        with self._ledger.transaction() as transaction:
            yield cast("Transaction", _WatchedTransaction(transaction))
            failpoint(commit)
        failpoint(committed)


def _places(caller: FrameType) -> tuple[str, ...]:
    """The failpoints of the call that a use case's frame executes; none if the caller is not a use case."""
    module = Path(caller.f_code.co_filename)
    if module.parent != USE_CASES:
        return ()
    _, end_line, _, end_column = next(islice(caller.f_code.co_positions(), caller.f_lasti // 2, None))
    return calls_of(module)[end_line or 0, end_column or 0]
