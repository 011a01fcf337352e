"""Printing: tables for people, JSON and CSV for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from epochline.errors import one_line
from epochline.protocol import quantities

_WIDE = 10_000
"""As wide as needed."""
_SHORTEST, _GAP = 8, 2

Columns = Sequence[tuple[str, Sequence[Text]]]
"""Headings, each with the cells below it."""

_STATES = {
    "COMMITTED": "green", "PRE_COMMITTED": "cyan", "PLANNED": "yellow", "ABORTED": "red",
    "RUNNING": "yellow", "SEALED": "cyan", "FENCED": "red", "FAILED": "red",
}  # fmt: skip


def console() -> Console:
    """The current standard output. Long lines are never cut."""
    return Console(soft_wrap=True, highlight=False)


def say(text: str = "") -> None:
    """Print one line of text without markup."""
    console().print(Text(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], least: Sequence[str] = ()) -> None:
    """Print rows under headings. Columns of numbers are aligned to the right.

    A file or a pipe gets every line whole. A terminal that is too narrow gets fewer columns, and a line below the table
    names what is left out. If the rest is still too wide, long texts go on in the next line of their column. A terminal
    that is too narrow even for that wraps whole lines.

    Args:
        columns: the headings.
        rows: one value per column.
        least: headings of columns that may be left out, the least important one first.
    """
    cells, out = [[_cell(value) for value in row] for row in rows], console()
    shown = [(name, [row[at] for row in cells]) for at, name in enumerate(columns)]
    for name in least if out.is_terminal else ():
        if _needed(shown) > out.width:
            shown = [column for column in shown if column[0] != name]
    whole = not out.is_terminal or _needed(shown) <= out.width or _narrowest(shown) > out.width
    printer = Console(width=_WIDE if whole else out.width, soft_wrap=whole, highlight=False)
    for line in printer.render_lines(_made(shown, whole), pad=False):
        printer.print(Segments([*_without_blanks(line), Segment.line()]))
    if len(shown) < len(columns):
        kept = {name for name, _ in shown}
        left_out = ", ".join(name for name in columns if name not in kept)
        say(f"left out because the terminal has {out.width} columns: {left_out}")


def _without_blanks(line: Sequence[Segment]) -> list[Segment]:
    """A line without the blanks that fill its last column."""
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []


def _needed(columns: Columns) -> int:
    """The characters of the longest line."""
    return Console(width=_WIDE).measure(_made(columns, whole_lines=True)).maximum


def _narrowest(columns: Columns) -> int:
    """The characters of a line if no number is broken, and texts are not broken more than anybody can read."""
    widths = []
    for name, texts in columns:
        widest = max(len(name), *(text.cell_len for text in texts), 0)
        widths.append(widest if _are_numbers(texts) else min(widest, _SHORTEST))
    return sum(widths) + _GAP * (len(widths) - 1)


def _are_numbers(texts: Sequence[Text]) -> bool:
    return bool(texts) and all(
        text.plain.lstrip("-").replace(",", "").isdigit() or text.plain in ("", "-") for text in texts
    )


def _made(columns: Columns, whole_lines: bool) -> Table:
    made = Table(box=None, pad_edge=False)
    for name, texts in columns:
        numbers = _are_numbers(texts)
        justify: Literal["right", "left"] = "right" if numbers else "left"
        made.add_column(Text(name), justify=justify, no_wrap=whole_lines or numbers, overflow="fold")
    for row in zip(*(texts for _, texts in columns), strict=True):
        made.add_row(*row)
    return made


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
        progress(f"broken declaration: {one_line(error)}")


def duration(seconds: float | None) -> str:
    """Seconds as text; a dash if there are none."""
    return "-" if seconds is None else quantities.duration(seconds)


def ago(seconds: float | None) -> str:
    """How long ago; a dash if that is unknown."""
    return "-" if seconds is None else f"{duration(seconds)} ago"


def number(value: float | None) -> str:
    """How many; a dash if nobody knows. Ids and offsets are printed as they are: people copy them into commands."""
    return "-" if value is None else quantities.number(value)


def moment(at: datetime) -> str:
    """A time to the second, with its zone."""
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


def _cell(value: Any) -> Text:
    if isinstance(value, Text):
        return value
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
