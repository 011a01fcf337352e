"""The version of the code decides which jobs share a Spark session: equal copies on two workers are one version."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline.config.discovery import code_version


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EPOCHLINE_DAGS", raising=False)
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path / "one"))
    for name in ("dags/orders.py", "spark_jobs/pipelines/orders.py"):
        path = tmp_path / "one" / name
        path.parent.mkdir(parents=True)
        path.write_text("LIMIT = 1\n")
    return tmp_path / "one"


def test_a_touched_file_and_a_copy_elsewhere_change_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git-synced worker writes the files at another time, into another folder."""
    before = code_version()

    os.utime(project / "dags" / "orders.py", (0, 0))
    assert code_version() == before

    elsewhere = project.with_name("another worker")
    shutil.copytree(project, elsewhere)
    for generated in ("dags/__pycache__/orders.py", "spark_jobs/.git/hooks/update.py", "dags/notes.txt"):
        (elsewhere / generated).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / generated).write_text("something else")
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(elsewhere))
    assert code_version() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda project: (project / "dags" / "orders.py").write_text("LIMIT = 2\n"),
        lambda project: (project / "spark_jobs" / "pipelines" / "orders.py").write_text("LIMIT = 2\n"),
        lambda project: (project / "dags" / "team-a").mkdir() or (project / "dags" / "team-a" / "new.py").touch(),
        lambda project: (project / "dags" / "orders.py").rename(project / "dags" / "bills.py"),
        lambda project: (project / "dags" / "orders.py").rename(project / "spark_jobs" / "orders.py"),
        lambda project: (project / "dags" / "orders.py").unlink(),
    ],
    ids=["a byte of a DAG", "a byte of a function", "a new file", "a name", "a folder", "a file less"],
)
def test_whatever_an_import_can_see_is_another_version(project: Path, change: Callable[[Path], object]) -> None:
    before = code_version()
    kept = {path: (path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in project.rglob("*.py")}

    change(project)
    for path in kept:
        if path.exists():
            os.utime(path, ns=kept[path])

    assert code_version() != before
