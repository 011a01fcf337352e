"""An archive of the classes that Spark's driver loads, which halves the processor time of a driver's start.

Java writes the archive at the end of a training run (dynamic class-data sharing, JEP 350) and maps it at each later
start. It checks version and class path itself, and goes on without an archive that does not fit.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from epochline.errors import StackError
from epochline.local.jars import cache_folder, java_executable, unwritable
from epochline.local.spark_home import spark_home

_TRAINING = Path(__file__).parents[1] / "spark" / "class_training.py"
_TRAINING_SECONDS = 300


def class_options() -> str:
    """The JVM options of a driver that uses the archive, for ``SPARK_SUBMIT_OPTS``; empty without an archive.

    The driver must run on `spark_home`, because another class path does not fit.
    """
    archive = _archive()
    # A new Java or other jars do not fit: Java would warn on the driver's output at each start.
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} -Xlog:cds*=off" if archive.is_file() else ""


def make_class_archive(report: Callable[[str], None] = lambda _text: None) -> None:
    """Write the archive with a small Spark job, unless there is one: half a minute, once per machine and Spark.

    Raises `StackError` if the job failed, or the cache cannot be written.
    """
    archive = _archive()
    if archive.is_file():
        return
    report(f"archiving Spark's classes in {archive.parent} (once per machine)")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete: Java trusts the content of a file with a good header.
        folder = Path(tempfile.mkdtemp(prefix=".training-", dir=archive.parent))
    except OSError as error:
        raise unwritable(archive.parent, error) from error
    try:
        _train(folder, folder / archive.name)
        (folder / archive.name).rename(archive)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _train(folder: Path, draft: Path) -> None:
    home = spark_home()
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.local.dir={folder}", "--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}",
        str(_TRAINING),
    ]  # fmt: skip
    environment = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"},
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={shlex.quote(str(draft))} -Xlog:cds*=off",
    }
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=_TRAINING_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"Spark's classes could not be archived: {error}") from error
    if done.returncode != 0 or not draft.is_file():
        last_words = " ".join((done.stderr + done.stdout).split()[-60:])
        raise StackError(f"Spark's classes could not be archived (exit code {done.returncode}): {last_words}")


def _archive() -> Path:
    java = java_executable().resolve()
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    # Java refuses an archive whose jars have another size or time, even if the same Spark was installed again. Without
    # `java -version`, which takes longer than the archive of a small program saves.
    identity = [
        str(java),
        java.stat().st_mtime_ns,
        *((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars),
    ]
    return cache_folder() / "classes" / f"spark-{hashlib.sha256(repr(identity).encode()).hexdigest()[:12]}.jsa"
