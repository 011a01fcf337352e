"""Which measured results are older than the code that they speak of: ``make stale``, which marks them on their page.

A result is a line of docs/data/reliability.tsv, or a table of a page. It is fresh if neither its program nor the code
that decides it (`tests.crash.matrix.SPEAKS_OF`, `TABLES`) changed between the commit of its run and the commit that is
checked out. Comments, docstrings and layout of Python files do not count.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.chart import SECTION
from tests.crash.matrix import speaks_of
from tests.crash.reliability import ROOT, Result, data_of, parsed, write

RUN = re.compile(r"(\d{4}-\d\d-\d\d), (?:commit )?`([0-9a-f]{7,}\+?)`")
"""Date and commit of a run, as every measured table has them."""

_NAMED = 3
"""At most this many changed files are named per result."""

_CODE = ("include", "spark_jobs", "tests", "bench", "requirements.txt")
_PROTOCOL = ("coordinator", "ports", "postgres", "protocol")
_JOB = (*_PROTOCOL, "arrow", "kafka", "sources", "spark")
_SINKS = (*_JOB, "sinks")
_PERFORMANCE = {
    "kinds": _JOB,
    "small_epoch": (*_JOB, "airflow", "local"),
    "records": _JOB,
    "cold": _JOB,
    "state": _JOB,
    "stateful": _JOB,
    "publish": (*_PROTOCOL, "kafka", "sinks"),
    "trial": _PROTOCOL,
    "price": _SINKS,
    "shares": (*_JOB, "local"),
    "pages": ("airflow", "postgres"),
    "many": (*_JOB, "airflow", "local"),
}


@dataclass(frozen=True)
class Table:
    """Where a page has a measured table, what decides its numbers, and what measures it again."""

    page: str
    section: str | None
    """The mark around the table; None for a page that is measured as a whole."""
    speaks_of: tuple[str, ...]
    command: str


def _rooms(*names: str) -> tuple[str, ...]:
    return tuple(f"include/epochline/{name}/" for name in names)


def _bench(name: str, page: str, speaks_of: tuple[str, ...]) -> Table:
    command = f".venv/bin/python -m bench.{name} --report {page}"
    return Table(page, f"bench.{name}", (*speaks_of, f"bench/{name}.py"), command)


TABLES = (
    *(_bench(name, "docs/performance.md", _rooms(*rooms)) for name, rooms in _PERFORMANCE.items()),
    _bench("footprint", "docs/memory.md", _rooms(*_JOB)),
    _bench("times", "CONTRIBUTING.md", ("include/epochline/", "requirements.txt")),
    Table("docs/model.md", None, (*_rooms(*_PROTOCOL, "kafka", "sinks"), "tests/model/"), "make model"),
    Table("docs/soak.md", None, (*_rooms(*_SINKS, "airflow", "local"), "tests/nemesis/"), "make soak"),
    Table("docs/semantics.md", None, (*_rooms(*_SINKS), "tests/crash/test_semantics.py"), "make semantics"),
)


@dataclass(frozen=True)
class Measured:
    """A result, the commit of its run, and the beginnings of the paths that it speaks of."""

    name: str
    commit: str
    speaks_of: tuple[str, ...]
    command: str = ""
    """What measures it again; empty for a test of the fault matrix."""


Stale = tuple[Measured, str]
"""A result whose run does not count for the code of now, and why."""


def changed_since(root: Path, commit: str) -> frozenset[str] | None:
    """The files that are not what they were at a commit; None if the checkout does not have the commit."""
    listed = git(root, "diff", "--raw", "--no-abbrev", "--no-renames", commit, "HEAD", "--", *_CODE)
    if listed is None:
        return None
    parts = [line.split(maxsplit=5) for line in listed.splitlines()]
    return frozenset(
        path
        for _, _, then, now, kind, path in parts
        if kind != "M" or not path.endswith(".py") or meaning(root, then) != meaning(root, now)
    )


def git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


@functools.cache
def meaning(root: Path, blob: str) -> str:
    """A Python text without its comments, docstrings and layout."""
    tree = ast.parse(git(root, "cat-file", "blob", blob) or "")
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                body[:] = [
                    one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
                ]
    return ast.dump(tree)


def of_a_fault(result: Result) -> Measured:
    return Measured(f"{result.fault} {result.test}", result.commit, speaks_of(result.fault, result.test))


def of_tables(root: Path) -> Iterator[Measured]:
    """The measured tables of the pages, one result for each commit that a table names.

    Raises:
        ValueError: a table has no date and commit, or a page has a table that `TABLES` does not know.
    """
    known = {(table.page, table.section) for table in TABLES}
    for page in sorted({table.page for table in TABLES if table.section}):
        for section, _ in SECTION.findall((root / page).read_text()):
            if (page, section) not in known:
                raise ValueError(f"{page}: TABLES does not say which code {section} speaks of")
    for table in TABLES:
        text = (root / table.page).read_text()
        if table.section is not None:
            text = dict(SECTION.findall(text)).get(table.section, "")
        commits = {commit for _, commit in RUN.findall(text)}
        if not commits:
            raise ValueError(f"{table.page}: {table.section or 'the page'} has no date and commit of its run")
        name = f"{table.page} {table.section or ''}".strip()
        for commit in sorted(commits):
            yield Measured(name, commit, table.speaks_of, table.command)


def stale(results: Iterable[Measured], root: Path) -> list[Stale]:
    """The results that are not of a run of the code of now, each with the reason."""
    at = functools.cache(functools.partial(changed_since, root))
    found = []
    for result in results:
        if result.commit.endswith("+"):
            found.append((result, f"ran on a working tree that was not its commit {result.commit}"))
        elif (changed := at(result.commit)) is None:
            found.append((result, f"ran at {result.commit}, which this checkout does not have"))
        elif files := sorted(path for path in changed if path.startswith(result.speaks_of)):
            more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
            found.append((result, f"changed since {result.commit}: {', '.join(files[:_NAMED])}{more}"))
    return found


def told(results: int, found: Sequence[Stale]) -> str:
    if not found:
        return f"All {results} results are of the code that is checked out."
    commands = list(dict.fromkeys(result.command for result, _ in found if result.command))
    faults = {result.name.split(" ")[1].partition("::")[0] for result, _ in found if not result.command}
    if faults:
        files = " ".join(sorted(faults))
        commands.append(f".venv/bin/pytest -n 0 -m fault --write-reliability docs/reliability.md {files}")
    summary = f"{len(found)} of {results} results are older than the code. Measure them again:"
    return "\n".join([*(f"{result.name}: {why}" for result, why in found), "", summary, *commands])


def marked(lines: Iterable[Result], found: Iterable[Stale]) -> list[Result]:
    """The lines of docs/reliability.md, each with whether it is stale."""
    older = {result for result, _ in found}
    return [replace(line, older=of_a_fault(line) in older) for line in lines]


def main() -> None:
    """Name and mark the results that are not fresh; exit code 1 if there is one."""
    page = ROOT / "docs" / "reliability.md"
    lines = parsed(data_of(page).read_text())
    results = [*map(of_a_fault, lines), *of_tables(ROOT)]
    found = stale(results, ROOT)
    write(page, marked(lines, found))
    print(told(len(results), found))
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
