"""What every measurement writes down with its numbers: machine, date, commit, and where the page has its section."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

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


def write_section(page: Path | None, bench: str, table: str) -> None:
    """Print a table, draw its chart, and replace what the bench wrote into a page before, between its marks.

    Raises:
        ValueError: the page has no place for it.
    """
    print(table)
    if page is None:
        return
    begin, end = f"<!-- {bench} begins -->", f"<!-- {bench} ends -->"
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{page} has no section between {begin} and {end}")
    section = with_chart(page, bench, table)
    page.write_text(f"{text.partition(begin)[0]}{begin}\n{section}\n{end}{text.partition(end)[2]}")
