"""SPARK_HOME: Spark's launcher and jars, and nothing from which Python would import."""

from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local import spark_home as module
from epochline.local.spark_home import spark_home


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyspark as pip installs it, and an empty cache."""
    folder = tmp_path / "pyspark"
    for name in ("bin", "jars", "sbin", "python/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "python/lib/pyspark.zip").touch()
    monkeypatch.setattr(module, "installed_pyspark", lambda: folder)
    monkeypatch.setenv("EPOCHLINE_CACHE", str(tmp_path / "cache"))
    return folder


def test_launcher_and_jars_are_there_once_per_installation_and_no_archive_of_python(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home()

    names = ("bin", "jars", "sbin")
    assert {one.name: one.resolve() for one in home.iterdir()} == {name: installed / name for name in names}
    assert spark_home() == home

    other = installed.rename(installed.with_name("other"))
    monkeypatch.setattr(module, "installed_pyspark", lambda: other)
    assert spark_home() != home


def test_a_package_without_archives_is_taken_as_it_is(installed: Path) -> None:
    (installed / "python/lib/pyspark.zip").unlink()

    assert spark_home() == installed


@pytest.mark.usefixtures("installed")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()

    with pytest.raises(StackError, match=r"the cache .*cache cannot be written.*EPOCHLINE_CACHE"):
        spark_home()
