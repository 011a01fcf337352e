"""``python -m bench.times``: how long commands take from a fresh clone, for CONTRIBUTING.md.

The commit that is checked out is cloned into an empty folder, its environment is made from the package cache, and each
command is run there as a person would type it. A command that fails ends the measurement: no time is written.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.report import ROOT, commit, machine, write_section

REPEATS = 7
MAKE = {
    "setup": "an environment from nothing, its packages in the cache",
    "demo": "a driver is killed on the way",
    "test-fast": "without a server",
    "test": "each promise once, `make lint` included",
}
_ROW = re.compile(r"^\| `([^`]+)` \| .* \| \d{4}-\d\d-\d\d, `\w+` \|$", re.MULTILINE)
CALLS = {"--help": "", "lag": "of every declared pipeline, on the stack that the demo leaves"}
"""What each is of."""


class Clone:
    """A fresh clone with a cache and a stack of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        # What the caller's shell holds of another checkout must not leak into this one.
        foreign = ("EPOCHLINE_", "PYTHONPATH", "VIRTUAL_ENV", "MAKE", "MFLAGS")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}

    def seconds(self, *command: str) -> float:
        """Run a command to its end; its output goes to the terminal's stderr."""
        began = time.perf_counter()
        ended = subprocess.run(command, cwd=self.folder, env=self._environment, stdout=sys.stderr, check=False)
        took = time.perf_counter() - began
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {ended.returncode}: no time is written.")
        return took

    def median(self, *command: str) -> float:
        """The median of several runs, after one that is not counted."""
        return statistics.median([self.seconds(*command) for _ in range(REPEATS + 1)][1:])


def measure(targets: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Seconds and what they are of, by command."""
    folder = Path(tempfile.mkdtemp(prefix="epochline-times-"))
    folder.chmod(0o755)  # as a checkout is: servers that root starts run as another account
    clone = Clone(folder / "epochline")
    took = {}
    try:
        for target in targets:
            took[f"make {target}"] = clone.seconds("make", target), MAKE[target]
            if target == "demo":
                epochline = str(clone.folder / ".venv" / "bin" / "epochline")
                for call, what in CALLS.items():
                    took[f"epochline {call}"] = clone.median(epochline, call), what
                clone.seconds("make", "down")
    finally:
        subprocess.run(["make", "down"], cwd=clone.folder, stdout=sys.stderr, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    return took


def table(took: Mapping[str, tuple[float, str]], former: str = "") -> str:
    """The section of the page. A command that was not run this time keeps its row of the former page."""
    rows = {found[1]: found[0] for found in _ROW.finditer(former)}
    for command, (seconds, what) in took.items():
        rows[command] = f"| `{command}` | {what} | {_written(seconds)} | {datetime.now(UTC):%Y-%m-%d}, `{commit()}` |"
    order = [f"make {target}" for target in MAKE] + [f"epochline {call}" for call in CALLS]
    return "\n".join(
        [
            f"Measured by `python -m bench.times` from a fresh clone, on {machine()}.",
            "",
            "| command | | time | date and commit |",
            "|---|---|---:|---|",
            *(rows[command] for command in order if command in rows),
        ]
    )


def _written(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.times", description=__doc__)
    parser.add_argument("--report", type=Path, help="the page whose section is replaced; printed otherwise")
    parser.add_argument("targets", nargs="*", help=f"targets of make; all of {', '.join(MAKE)} by default")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(MAKE):
        parser.error(f"no time is taken of {', '.join(sorted(unknown))}; choose from {', '.join(MAKE)}")
    took = measure(options.targets or list(MAKE))
    write_section(options.report, "bench.times", table(took, options.report.read_text() if options.report else ""))


if __name__ == "__main__":
    main()
