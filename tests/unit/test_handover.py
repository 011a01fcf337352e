"""Connection details on their way to a Spark driver: never readable by others, never left lying about (SEC-4)."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from epochline.airflow.handover import credentials_file, environment_of_job
from epochline.spark.credentials import CREDENTIALS_VARIABLE, read_credentials

CONNECTIONS = {"postgres": {"dsn": "postgresql://u:canary@h:1/d"}, "kafka": {"bootstrap.servers": "b:1"}}
HOLDER = """
import json, os, signal, sys
from epochline.airflow.handover import credentials_file
with credentials_file(json.loads(sys.argv[1])) as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_only_the_owner_can_read_it_and_it_is_gone_afterwards(folder: Path) -> None:
    with credentials_file(CONNECTIONS) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    assert list(folder.iterdir()) == []


def test_the_driver_deletes_it_as_soon_as_it_is_read() -> None:
    """SEC-4: a task that is killed while Spark works leaves no password behind."""
    with credentials_file(CONNECTIONS) as path:
        credentials = read_credentials({CREDENTIALS_VARIABLE: str(path)})

        assert credentials.dsn == CONNECTIONS["postgres"]["dsn"]
        assert not path.exists()


def test_a_file_that_was_put_in_place_by_hand_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(CONNECTIONS))
    path.chmod(0o600)

    read_credentials({CREDENTIALS_VARIABLE: str(path)})

    assert path.exists()


def test_what_a_killed_task_left_is_deleted_by_the_next_one() -> None:
    """SIGKILL ends the task before its driver reads the file."""
    command = [sys.executable, "-c", HOLDER, json.dumps(CONNECTIONS)]
    left = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    assert left.exists()

    with credentials_file(CONNECTIONS):
        assert not left.parent.exists()


def test_what_a_living_task_holds_is_left_alone() -> None:
    with credentials_file(CONNECTIONS) as first, credentials_file(CONNECTIONS) as second:
        assert first.exists()
        assert second.exists()


def test_a_job_does_not_inherit_the_passwords_of_airflows_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-6: what Spark runs is the pipeline's own code; it gets the writer's login and no other."""
    secret = ("AIRFLOW_CONN_EPOCHLINE_POSTGRES", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__CORE__FERNET_KEY",
              "AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW_VAR_KEY")  # fmt: skip
    for name in secret:
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "8")

    with environment_of_job(EPOCHLINE_CREDENTIALS="/x"):
        inherited = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout

    assert "canary" not in inherited
    assert "EPOCHLINE_CREDENTIALS=/x" in inherited
    assert "AIRFLOW__CORE__PARALLELISM=8" in inherited
    assert os.environ["AIRFLOW_CONN_EPOCHLINE_POSTGRES"] == "canary"
    assert CREDENTIALS_VARIABLE not in os.environ
