"""A failpoint at every call of a use case on a port, and the names of all failpoints.

A use case is a module of `epochline.coordinator`. Its call of a port's method is named ``MODULE.PORT.METHOD``
(``commit.chain.advance``), where ports are the sides of a transaction, ``source`` and ``sink``. A transaction has
``MODULE.transaction`` (before it is opened), ``MODULE.commit`` (before its COMMIT) and ``MODULE.committed`` (after it).
The second call of the same name in a module, in the order of the text, ends in ``.2``, and so on, so that each name is
unique. What a use case calls its variables does not matter.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from epochline.failpoints.named import armed, failpoint

if TYPE_CHECKING:
    from epochline.ports import Ledger, OffsetSource, Transaction

Position = tuple[int, int]
"""Line and column at which a call's text ends. Both the syntax tree and a running frame have it."""

_PACKAGE = Path(__file__).parents[1]
USE_CASES = _PACKAGE / "coordinator"
BY_HAND = (
    _PACKAGE / "spark",
    _PACKAGE / "postgres" / "ledger" / "parts.py",
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
    """The ledger, with failpoints if the environment names one.

    Raises:
        ConfigurationError: failpoints are forbidden here, or the failpoint does not exist.
    """
    return _WatchedLedger(ledger) if armed() else ledger


def watched_source(source: OffsetSource) -> OffsetSource:
    """The source, with failpoints if the environment names one.

    Raises:
        ConfigurationError: as for `watched`.
    """
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
