"""The archive of Spark's classes: it is made once, a driver uses it, and one that does not fit harms nobody."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local import class_archive
from epochline.local.class_archive import class_options, make_class_archive
from epochline.local.spark_home import spark_home

SHARED = "source: shared objects file (top)"
"""How Java's log of loaded classes names the archive."""


@pytest.fixture(scope="module")
def archive() -> Path:
    """The one that `make setup` made."""
    make_class_archive()
    return class_archive._archive()


def started(tmp_path: Path, options: str) -> tuple[str, Path]:
    """What a driver with these options prints, and its log of loaded classes."""
    log = tmp_path / "classes.log"
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('counted', spark.range(3).count())\n"
        "spark.stop()\n"
    )
    environment = {
        **os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": f"{options} -Xlog:class+load:file={log}",
    }  # fmt: skip
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]", str(program)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "counted 3" in done.stdout
    return done.stdout + done.stderr, log


@pytest.mark.parametrize("extra", [False, True], ids=["its own class path", "another class path"])
def test_a_driver_takes_its_classes_from_the_archive_or_does_without(
    archive: Path, tmp_path: Path, extra: bool
) -> None:
    said, log = started(tmp_path, class_options() + f" -Xbootclasspath/a:{tmp_path}" * extra)

    of_spark = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    shared = [line for line in of_spark if SHARED in line]
    assert shared == [] if extra else len(shared) > len(of_spark) / 2 > 500
    assert "warning][cds" not in said


def test_a_machine_without_an_archive_gives_no_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPOCHLINE_CACHE", str(tmp_path))

    assert class_options() == ""


def test_jars_that_were_installed_again_have_an_archive_of_their_own(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Java refuses an archive of jars with another time; the file's name must not say that it fits."""
    again = tmp_path / "spark"
    shutil.copytree(spark_home() / "jars", again / "jars", copy_function=os.symlink)
    monkeypatch.setattr(class_archive, "spark_home", lambda: again)
    same = class_archive._archive()
    jar = next((again / "jars").glob("spark-core*.jar"))
    content = jar.resolve()
    jar.unlink()
    shutil.copyfile(content, jar)

    assert class_archive._archive() != same


def test_an_archive_is_not_made_again(archive: Path) -> None:
    before = archive.stat().st_mtime_ns

    make_class_archive()

    assert archive.stat().st_mtime_ns == before


def test_a_training_that_fails_leaves_no_archive_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache, program = tmp_path / "cache", tmp_path / "broken.py"
    program.write_text("raise SystemExit('no such thing')")
    monkeypatch.setattr(class_archive, "_TRAINING", program)
    monkeypatch.setenv("EPOCHLINE_CACHE", str(cache))

    with pytest.raises(StackError, match="no such thing"):
        make_class_archive()

    assert list((cache / "classes").iterdir()) == []
