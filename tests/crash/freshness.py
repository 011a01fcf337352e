"""Which lines of docs/reliability.md are older than the code that they speak of: ``make reliability-fresh``.

A line is fresh if neither its test nor the folders of its fault (`tests.crash.matrix.SPEAKS_OF`) changed between the
commit of its run and the commit that is checked out. Comments, docstrings and layout of Python files do not count.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.crash.matrix import speaks_of
from tests.crash.reliability import ROOT, Result, parsed

_NAMED = 3
"""So many changed files are named per line."""


@dataclass(frozen=True)
class Stale:
    """A line of the page whose run does not count for the code of now."""

    result: Result
    why: str

    def __str__(self) -> str:
        return f"{self.result.fault} {self.result.test}: {self.why}"


@dataclass
class History:
    """The commits of a checkout, and whether files differ between one of them and the newest."""

    root: Path
    _changed: dict[str, frozenset[str] | None] = field(default_factory=dict)
    _meaning: dict[str, str] = field(default_factory=dict)

    def changed_since(self, commit: str) -> frozenset[str] | None:
        """The files that are not what they were at a commit; None if the checkout does not have the commit."""
        if commit not in self._changed:
            then = self._blobs(commit)
            self._changed[commit] = None if then is None else self._differing(then)
        return self._changed[commit]

    @cached_property
    def _now(self) -> dict[str, str]:
        return self._blobs("HEAD") or {}

    def _differing(self, then: dict[str, str]) -> frozenset[str]:
        return frozenset(
            path
            for path in then.keys() | self._now.keys()
            if then.get(path) != self._now.get(path) and not self._means_the_same(path, then.get(path))
        )

    def _means_the_same(self, path: str, then: str | None) -> bool:
        now = self._now.get(path)
        if then is None or now is None or not path.endswith(".py"):
            return False
        return self._meaning_of(then) == self._meaning_of(now)

    def _meaning_of(self, blob: str) -> str:
        if blob not in self._meaning:
            self._meaning[blob] = meaning(self._git("cat-file", "blob", blob) or "")
        return self._meaning[blob]

    def _blobs(self, commit: str) -> dict[str, str] | None:
        listed = self._git("ls-tree", "-r", commit, "--", "include", "spark_jobs", "tests")
        if listed is None:
            return None
        return {line.partition("\t")[2]: line.split()[2] for line in listed.splitlines()}

    def _git(self, *arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None


def meaning(text: str) -> str:
    """A Python text without its comments, docstrings and layout."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def stale(results: Iterable[Result], history: History) -> list[Stale]:
    """The lines that are not of a run of the code of now, each with the reason."""
    found = []
    for result in results:
        if result.commit.endswith("+"):
            found.append(Stale(result, f"ran on a working tree that was not its commit {result.commit}"))
            continue
        changed = history.changed_since(result.commit)
        if changed is None:
            found.append(Stale(result, f"ran at {result.commit}, which this checkout does not have"))
            continue
        folders = speaks_of(result.fault, result.test)
        if files := sorted(path for path in changed if path.startswith(folders)):
            more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
            found.append(Stale(result, f"changed since {result.commit}: {', '.join(files[:_NAMED])}{more}"))
    return found


def told(lines: int, found: Sequence[Stale]) -> str:
    """What is said of a page with so many lines."""
    if not found:
        return f"All {lines} lines are of the code that is checked out."
    files = sorted({one.result.test.partition("::")[0] for one in found})
    command = f".venv/bin/pytest -n 0 -m fault --write-reliability docs/reliability.md {' '.join(files)}"
    return "\n".join(
        [*map(str, found), "", f"{len(found)} of {lines} lines are older than the code. Make them again:", command]
    )


def main() -> None:
    """Name the lines that are not fresh; exit code 1 if there is one."""
    results = parsed((ROOT / "docs" / "reliability.md").read_text())
    found = stale(results, History(ROOT))
    print(told(len(results), found))
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
