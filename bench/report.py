"""What every measurement writes down with its numbers: the machine, and where the page has its section."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from bench.chart import with_chart


def machine() -> str:
    """The processor, memory and system that were measured on."""
    model = "an unknown processor"
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found[1] if found else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


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
