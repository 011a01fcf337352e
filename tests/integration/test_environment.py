"""Variables and folders that hinder a command: it goes on, or a sentence names them. None is reported as a defect."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import COMMAND, environment_of

HINDERED = {
    "JAVA_HOME": ("{folder}/nowhere", r"JAVA_HOME is {folder}/nowhere, but {folder}/nowhere/bin/java is no program"),
    "PYSPARK_SUBMIT_ARGS": ("--foo pyspark-shell", "Spark did not start", "PYSPARK_SUBMIT_ARGS"),
    "PGOPTIONS": ("-c default_transaction_read_only=on", "read-only", "PGOPTIONS"),
    "PYTHONPATH": ("{folder}/hiding", "Python takes pyspark from {folder}/hiding/pyspark.py", "PYTHONPATH"),
}


def run(folder: Path, postgres: str, kafka: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, "run", "people", "--master", "local[1]"], capture_output=True, text=True, check=False,
        env=environment_of(folder, postgres=postgres, kafka=kafka, **variables),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("variable", HINDERED)
def test_a_variable_that_hinders_is_named(
    fed: str, tmp_path: Path, postgres_dsn: str, kafka_bootstrap: str, variable: str
) -> None:
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "pyspark.py").touch()
    value, *said = (text.format(folder=tmp_path) for text in HINDERED[variable])

    code, printed = run(tmp_path, postgres_dsn, kafka_bootstrap, **{variable: value})

    assert code == 1, printed
    assert "please report it" not in printed
    assert [one for one in said if one not in printed] == [], printed


def test_variables_of_spark_connect_are_ignored(
    fed: str, tmp_path: Path, postgres_dsn: str, kafka_bootstrap: str
) -> None:
    """The connection names the master."""
    ignored = {"SPARK_REMOTE": "sc://nowhere:15002", "SPARK_CONNECT_MODE_ENABLED": "1"}
    code, printed = run(tmp_path, postgres_dsn, kafka_bootstrap, **ignored)

    assert (code, "Traceback" in printed) == (0, False), printed
    assert "100 records read" in printed


def test_a_full_disk_is_no_defect_of_epochline(tmp_path: Path) -> None:
    full = "open('/dev/full', 'w', buffering=1).write('x\\n')"
    script = f"from epochline import cli; cli.app = lambda **_: {full}; cli.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "please report it" not in done.stderr
