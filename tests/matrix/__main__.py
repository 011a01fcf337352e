"""``python -m tests.matrix``: run the smoke path on both ends of each supported range, and write what came of it.

Writes docs/data/versions.tsv and the table of docs/versions.md. A row that is not run this time keeps its line, with the
date and the commit of its run. Exit code 1: a row failed, or a version outside its range was not refused.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.report import ROOT, write_section
from epochline.config.versions import RANGES
from tests.crash.reliability import commit_of_tree

DATA, PAGE = ROOT / "docs" / "data" / "versions.tsv", ROOT / "docs" / "versions.md"
_SMOKE = "tests/matrix/test_smoke.py"
_EXACT = (_SMOKE, "-k", "exact")
_IN_SPARK = [f"tests/integration/spark/test_spark_{what}.py" for what in ("transform", "state", "event_time")]
_INSTALL = "tests/e2e/test_install.py"
_APPROVAL = "tests/airflow/test_approval.py"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of pytest. What is not named is as in this environment."""

    shows: Sequence[str]
    """Names of ranges, of which the run shows the version that it finds."""
    tests: Sequence[str]
    pins: Sequence[str] = ()
    """Packages in place of those of the lock files."""
    python: str = ""
    result: str = "works"
    version: str = ""
    """The version that is wanted, for a run that is not made."""


ROWS: Mapping[str, Row] = {
    "newest": Row(shows=("PostgreSQL", "Kafka", "Spark", "Python"), tests=_EXACT),
    "postgresql-16": Row(shows=("PostgreSQL",), tests=(*_EXACT, "--postgresql", "16"), version="16"),
    "postgresql-15": Row(
        shows=("PostgreSQL",), tests=(_SMOKE, "-k", "postgresql_below", "--postgresql", "15"), version="15",
        result="refused",
    ),
    "kafka-2.8": Row(shows=("Kafka",), tests=(*_EXACT, "--kafka", "2.8"), version="2.8"),
    "kafka-2.7": Row(
        shows=("Kafka",), tests=(_SMOKE, "-k", "kafka_below", "--kafka", "2.7"), version="2.7", result="refused"
    ),
    "spark-4.0": Row(
        shows=("Spark",), tests=(_SMOKE, *_IN_SPARK, "-m", "not slow", "-k", "not below"), version="4.0",
        pins=("pyspark==4.0.0", "pyspark-client==4.0.0"),
    ),
    "python-3.13": Row(shows=("Python",), tests=_EXACT, python="3.13", version="3.13"),
    "airflow-3.2": Row(
        shows=("Airflow",), tests=(_INSTALL, _APPROVAL, "-k", "3.2. or approval"), version="3.2.2",
        pins=(
            "apache-airflow==3.2.2", "apache-airflow-core==3.2.2", "apache-airflow-task-sdk==1.2.2",
            "apache-airflow-providers-standard==1.12.3", "apache-airflow-providers-apache-spark==6.0.1",
        ),
    ),
    "airflow-3.3": Row(shows=("Airflow",), tests=(_INSTALL, "-k", "3.3."), version="3.3"),
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """What a row showed of one server, interpreter or package."""

    row: str
    what: str
    version: str
    result: str
    date: str
    commit: str
    seconds: str


def run(name: str, row: Row, commit: str) -> list[Line]:
    """Run a row; a line for each range that it shows."""
    began = time.monotonic()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="epochline-matrix-") as folder:
        python = _python(row, Path(folder))
        if python is None or not (ROOT / row.tests[0]).exists():
            result = f"not run: no {'such test' if python else f'Python {row.python}'} here"
        else:
            report = Path(folder) / "report.xml"
            options = ["-n", "0", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
            command = [python, "-m", "pytest", *options, *row.tests]
            print(f"{name}: {' '.join(command)}", flush=True)
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            found, skipped = _found(report)
            result = "fails" if code else f"not run: {skipped}" if skipped else row.result
    ended = f"{datetime.now(UTC):%Y-%m-%d}", commit, f"{time.monotonic() - began:.0f}"
    return [Line(name, what, found.get(what, row.version), result, *ended) for what in row.shows]


def _python(row: Row, folder: Path) -> str | None:
    """The interpreter of a row, in an environment with the locked packages; None if this machine has no such Python."""
    if not row.pins and not row.python:
        return sys.executable
    wanted = shutil.which(f"python{row.python}") if row.python else sys.executable
    if wanted is None or subprocess.run([wanted, "--version"], capture_output=True, check=False).returncode != 0:
        return None
    pins = folder / "pins.txt"
    pins.write_text("\n".join(row.pins))
    made, uv = folder / "environment", Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", "-p", wanted, made], check=True)
    locked = ["-r", "requirements.txt", "-r", "requirements-dev.txt", "--overrides", str(pins)]
    python = str(made / "bin" / "python")
    install = [str(uv), "pip", "install", "-q", "--compile-bytecode", "--no-deps", "-p", python, *locked]
    subprocess.run(install, cwd=ROOT, check=True)
    return python


def _found(report: Path) -> tuple[dict[str, str], str]:
    """By the name of a range, the version that a run noted, of Airflow the one in its test's name; and why it was skipped."""
    tree = ET.parse(report)  # noqa: S314 - pytest has just written it
    noted = {str(one.get("name")): str(one.get("value")) for one in tree.iter("property")}
    in_name = [re.search(r"\[([\d.]+)\]", str(case.get("name"))) for case in tree.iter("testcase")]
    airflow = [match[1] for match in in_name if match]
    noted |= {"Airflow": airflow[-1]} if airflow else {}
    return noted, "; ".join(str(one.get("message")) for one in tree.iter("skipped"))


def read() -> list[Line]:
    """The lines that are written."""
    return [Line(*line.split("\t")) for line in DATA.read_text().splitlines()[1:]] if DATA.exists() else []


def table(lines: Sequence[Line]) -> str:
    """The table of the page: per range what was run of it."""
    rows = ["| | Range | Runs |", "|---|---|---|"]
    for what, supported in RANGES.items():
        runs = "; ".join(f"{line.version} {line.result}" for line in lines if line.what == what)
        rows.append(f"| {what} | {supported} | {runs} |")
    return "\n".join(rows)


def write(lines: Sequence[Line]) -> None:
    """Write data and page, in the order of `RANGES` and of versions."""
    order = list(RANGES)
    lines = sorted(lines, key=lambda line: (order.index(line.what), [int(n) for n in re.findall(r"\d+", line.version)]))
    heading = "\t".join(field.name for field in fields(Line))
    DATA.write_text("".join(f"{line}\n" for line in (heading, *("\t".join(astuple(line)) for line in lines))))
    write_section(PAGE, "tests.matrix", table(lines))


def main(arguments: list[str] | None = None) -> int:
    """Run the named rows, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"by default all of {', '.join(ROWS)}")
    names = parser.parse_args(arguments).rows or list(ROWS)
    commit = commit_of_tree()
    new = [line for name in names for line in run(name, ROWS[name], commit)]
    write([*(line for line in read() if line.row in ROWS and line.row not in names), *new])
    return int(any(line.result == "fails" for line in new))


if __name__ == "__main__":
    sys.exit(main())
