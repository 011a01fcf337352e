"""Printing: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000
_STATES = {
    "COMMITTED": "green", "PRE_COMMITTED": "cyan", "PLANNED": "yellow", "ABORTED": "red",
    "RUNNING": "yellow", "SEALED": "cyan", "FENCED": "red",
}  # fmt: skip


def console() -> Console:
    """The current standard output. Long lines are never cut."""
    return Console(soft_wrap=True, highlight=False)


def say(text: str = "") -> None:
    """Print one line of text without markup."""
    console().print(Text(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings. Columns of numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    kept = list(zip(*cells, strict=True)) if cells else [()] * len(columns)
    out = Table(box=None, pad_edge=False)
    for name, texts in zip(columns, kept, strict=True):
        numbers = bool(texts) and all(text.plain.lstrip("-").isdigit() or text.plain in ("", "-") for text in texts)
        out.add_column(Text(name), justify="right" if numbers else "left", no_wrap=True)
    for row in cells:
        out.add_row(*row)
    # As wide as needed: a terminal wraps long lines, and a file must get them whole.
    Console(width=_WIDE, soft_wrap=True, highlight=False).print(out)


def as_json(value: Any) -> str:
    """Values from PostgreSQL or the ledger as JSON: times in ISO 8601, exact numbers unrounded."""
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=2)


def json_line(row: Mapping[str, Any]) -> str:
    """One row as one line of JSON."""
    return json.dumps(row, default=_plain, ensure_ascii=False)


def text(value: Any) -> str:
    """A value as text, in PostgreSQL's form where it differs from Python's."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    plain = _plain(value) if isinstance(value, memoryview | bytes) else value
    return str(plain)


def progress(message: str) -> None:
    """Print a line of progress to standard error; standard output is for results."""
    print(message, file=sys.stderr, flush=True)


def broken(errors: Iterable[Exception]) -> None:
    """Name each broken declaration on standard error."""
    for error in errors:
        progress(f"broken declaration: {' '.join(str(error).split())}")


def duration(seconds: float | None) -> str:
    """Seconds as text; hours and minutes from one minute on."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))


def _cell(value: Any) -> Text:
    if isinstance(value, datetime):
        return Text(value.strftime("%Y-%m-%d %H:%M:%S"))
    shown = "-" if value is None else text(value)
    return Text(shown, style=_STATES.get(shown, ""))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        exponent = value.as_tuple().exponent
        return int(value) if exponent == 0 else str(value)
    if isinstance(value, memoryview | bytes):
        return f"\\x{bytes(value).hex()}"
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
