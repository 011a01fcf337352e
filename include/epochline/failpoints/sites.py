"""Find the failpoints in the source code: every call of a use case on a port, and those named by hand.

A use case is a module of `epochline.coordinator`. Its calls on a port are named ``MODULE.SIDE.METHOD``
(``commit.chain.advance``). A transaction has ``MODULE.transaction`` (before it is opened), ``MODULE.commit`` (before
its COMMIT) and ``MODULE.committed`` (after it). The second call of the same name in a module, in the order of the
text, ends in ``.2``, and so on, so that each name is unique.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SIDES = (
    "epochs",
    "chain",
    "attempts",
    "targets",
    "quarantine",
    "operators",
    "history",
    "states",
    "savepoints",
    "receipts",
)
"""The sides of `epochline.ports.Transaction`."""

SOURCE = (
    "look", "counted", "gaps", "readable_ends", "log_ends", "offsets_at", "leader_epoch_ends", "mirrored", "mirror",
    "group_retention", "forget",
)  # fmt: skip
"""The methods of `epochline.ports.OffsetSource`."""

SINK = (
    "preflight",
    "prepare",
    "begin",
    "seal",
    "commit",
    "abort",
    "recover_and_commit",
    "recover_and_abort",
    "notify_complete",
    "sending_seconds",
    "newest_shown",
)
"""The methods of a sink that use cases call on a variable ``sink``; see `epochline.protocol.sink`."""

TRANSACTION = "transaction"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The failpoints of one call on a port: its name, and for a transaction the names around its COMMIT."""

    name: str
    commit: str = ""
    committed: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every failpoint of the call."""
        return tuple(filter(None, (self.name, self.commit, self.committed)))


def port_method(call: ast.Call) -> str | None:
    """The port's method that a call calls, such as ``chain.advance``, ``source.look`` or ``transaction``, or None."""
    match call.func:
        case ast.Attribute(attr=method, value=ast.Attribute(attr=side)) if side in SIDES:
            return f"{side}.{method}"
        case ast.Attribute(attr=method, value=ast.Name(id="source")) if method in SOURCE:
            return f"source.{method}"
        case ast.Attribute(attr=method, value=ast.Name(id="sink")) if method in SINK:
            return f"sink.{method}"
        case ast.Attribute(attr="transaction"):
            return TRANSACTION
    return None


@cache
def sites_of(module: Path) -> Mapping[Position, Site]:
    """The calls on ports in one use case, by the position of their end."""
    calls = sorted(
        (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)),
        key=lambda call: (call.lineno, call.col_offset),
    )
    seen: Counter[str] = Counter()
    sites = {}
    for call in calls:
        method = port_method(call)
        if method is None:
            continue
        seen[method] += 1
        number = f".{seen[method]}" if seen[method] > 1 else ""
        case = module.stem
        site = Site(name=f"{case}.{method}{number}")
        if method == TRANSACTION:
            site = Site(name=site.name, commit=f"{case}.commit{number}", committed=f"{case}.committed{number}")
        sites[call.end_lineno or 0, call.end_col_offset or 0] = site
    return sites


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
    by_port = {name for module in use_cases() for site in sites_of(module).values() for name in site.names}
    return frozenset(by_port | set(named_by_hand()))
