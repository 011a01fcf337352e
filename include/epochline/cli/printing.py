"""Printing: tables for people, JSON and CSV for programs, and how a command says that it failed."""

import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import psycopg2
import typer
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from epochline.errors import EpochlineError, PipelineStandsError, one_line
from epochline.postgres.queries.driver_errors import explained as explained_by_postgres
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
        least: headings of columns that may be left out, the least important one first. A chart has the heading ``""``.
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
    kept = {name for name, _ in shown}
    left_out = ", ".join(name for name in columns if name and name not in kept)
    if left_out:
        say(f"left out because the terminal has {out.width} columns: {left_out}")


def _without_blanks(line: Sequence[Segment]) -> list[Segment]:
    """A line without the blanks that fill its last column."""
    segments = list(line)
    while segments and not segments[-1].text.rstrip():
        segments.pop()
    return [*segments[:-1], Segment(segments[-1].text.rstrip(), segments[-1].style)] if segments else []


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


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bars(values: Sequence[float | None], width: int = 10) -> list[Text]:
    """A bar for each value, the longest for the highest; no bar for nothing. A terminal shows it beside the number."""
    most = max((value or 0 for value in values), default=0)
    lengths = [0 if not value or value < 0 else max(1, round(8 * width * value / most)) for value in values]
    return [Text(_EIGHTHS[8] * (long // 8) + _EIGHTHS[long % 8].strip(), style="cyan") for long in lengths]


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
    content = "-" if value is None else text(value)
    return Text(content, style=_STATES.get(content, ""))


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


_REACH_SPARK = ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS",
                "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_DAEMON_JAVA_OPTS", "TMPDIR", "PYTHONPATH")  # fmt: skip
"""Variables that change how Spark's driver starts; a value may be secret, so a message shows the names alone."""

_LOG_LINES = 4


def told(error: EpochlineError) -> str:
    """A line for each cause. None ends with the command that was just run: nothing is better the second time."""
    message = error.said if isinstance(error, PipelineStandsError) and _is_running(error.command) else str(error)
    causes = dict.fromkeys([message, *getattr(error, "__notes__", ())])
    return "\n".join(f"error: {one_line(cause)}" for cause in causes)


def _is_running(command: str | None) -> bool:
    name, *arguments = shlex.split(command or "") or [""]
    return sys.argv[1:2] == [name] and set(arguments) - {"…"} <= set(sys.argv[2:])


def each(names: Iterable[str], act: Callable[[str], object]) -> None:
    """Call ``act`` with each name; an error of one is printed and hides no other.

    Raises:
        EpochlineError: the only name failed.
        typer.Exit: one of several names failed; the code is the highest one.
    """
    unique, worst = list(dict.fromkeys(names)), 0
    for name in unique:
        try:
            act(name)
        except EpochlineError as error:
            if len(unique) == 1:
                raise
            progress(told(error))
            worst = max(worst, error.exit_code)
    if worst:
        raise typer.Exit(worst)


def explained(error: Exception) -> str | None:
    """What happened and what to do, for an error that no part of Epochline raises; None if nothing explains it."""
    if isinstance(error, ImportError):
        return _not_imported(error)
    if isinstance(error, psycopg2.Error):
        return str(explained_by_postgres(error))
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}. The machine refused it; correct that and repeat the command."
    return None


def not_started(error: Exception, log: Path) -> str:
    """Why Spark's driver did not start: the last lines of its log, and the variables that it was given."""
    variables = ", ".join(name for name in _REACH_SPARK if os.environ.get(name))
    text = log.read_text(errors="replace") if log.exists() else ""
    ending = " | ".join([line.strip() for line in text.splitlines() if line.strip()][-_LOG_LINES:])
    first = next(iter(str(error).strip().splitlines()), "")
    return f"Spark did not start ({type(error).__name__}: {first}). Its log {log} ends with: {ending or 'nothing'}." + (
        f" These variables of the environment reach it: {variables}. Correct or unset them." if variables else ""
    )


def _not_imported(error: ImportError) -> str:
    name = (error.name or "").partition(".")[0]
    module = sys.modules.get(name)
    places = [file] if (file := getattr(module, "__file__", None)) else list(getattr(module, "__path__", ()))
    if not places:
        return f"{error}. The package is not installed in {sys.prefix}."
    installed = Path(sysconfig.get_path("purelib"))
    if installed in Path(places[0]).parents:
        return f"{error}. The installed package {places[0]} is incomplete or of another version: install it again."
    return (
        f"{error}. Python takes {name} from {places[0]}, which hides the installed package. Rename it, or take its"
        f" folder out of PYTHONPATH{f' ({path})' if (path := os.environ.get('PYTHONPATH')) else ''}."
    )
