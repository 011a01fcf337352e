"""What every measurement writes down with its numbers: machine, date, commit, and where the page has its section."""

import argparse
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.chart import with_chart

ROOT = Path(__file__).parents[1]


def machine() -> str:
    """The processor, memory and system that were measured on."""
    model = "an unknown processor"
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found[1] if found else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def commit() -> str:
    """The commit that is checked out."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def measured_by(bench: str) -> str:
    """The line under a table's heading: the program, the machine, its load, the date and the commit."""
    load, date = os.getloadavg()[0], datetime.now(UTC)
    return f"Measured by `python -m {bench}` on {machine()}; load average {load:.1f}; {date:%Y-%m-%d}, `{commit()}`."


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table; all columns but the first hold figures."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (headings, *rows)]
    return [lines[0], "|---|" + "---:|" * (len(headings) - 1), *lines[1:]]


def spread(seconds: Sequence[float], digits: int) -> str:
    """The median, the least and the most."""
    return ", ".join(f"{figure:.{digits}f}" for figure in (median(seconds), min(seconds), max(seconds)))


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of one, as a ratio to that of the other."""
    return median(one) / median(other)


def measured_table(
    bench: str, what: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *after: str
) -> str:
    """The section of a bench with one table: what was measured, on which machine, and the figures."""
    return "\n".join([what, measured_by(bench), "", *table(headings, rows), *after])


def write_section(page: Path | None, bench: str, table: str) -> None:
    """Print a table, draw its chart, and replace what the bench wrote into a page before, between its marks.

    Raises:
        ValueError: the page has no place for it.
    """
    print(table)
    if page is not None:
        replace_section(page, bench, with_chart(page, bench, table))


def replace_section(page: Path, bench: str, section: str) -> None:
    """Replace what a page has between the marks of a bench. Raises `ValueError` if it has none."""
    begin, end = f"<!-- {bench} begins -->", f"<!-- {bench} ends -->"
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{page} has no section between {begin} and {end}")
    page.write_text(f"{text.partition(begin)[0]}{begin}\n{section}\n{end}{text.partition(end)[2]}")


def run(
    bench: str,
    doc: str | None,
    section: Callable[..., str],
    short: Callable[[str], str] | None = None,
    /,
    **options: tuple[Any, str],
) -> None:
    """Read the options of a bench, and print the section that it measured or write it into a page.

    Args:
        bench: the module.
        doc: what ``--help`` says.
        section: takes the values of the options by name.
        short: makes a shorter section of it, for a second page.
        options: default and meaning of each, a number, a text or a list of them.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {bench}", description=doc, formatter_class=formatter)
    for name, (default, meaning) in options.items():
        several: dict[str, Any] = {"nargs": "+"} if isinstance(default, list) else {}
        kind = type(default[0] if several else default)
        help_ = f"{meaning} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=kind, default=default, help=help_, **several)
    parser.add_argument("--report", type=Path, help="the page whose table is replaced")
    if short:
        parser.add_argument("--short-report", type=Path, help="the page whose short table is replaced")
    given = vars(parser.parse_args())
    page, second = given.pop("report"), given.pop("short_report", None)
    text = section(**given)
    write_section(page, bench, text)
    if short and second:
        replace_section(second, bench, short(text))
