"""Commands on an Airflow that is not their embedded stack's: by address and login, with the connections that it keeps."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epochline.config.connections import KAFKA, POSTGRES
from epochline.local import credentials
from tests.airflow import rest
from tests.airflow.conftest import Scheduler
from tests.commands import kafka_connection
from tests.conftest import AIRFLOW_DAGS, FUNCTIONS

FILES = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
Elsewhere = Callable[..., str]
"""Runs a command; gives what it said, in one line, after it ended with ``code``; ``variables`` change its environment."""


@pytest.fixture
def elsewhere(scheduler: Scheduler, tmp_path: Path) -> Iterator[Elsewhere]:
    """A shell without a stack: Airflow's database has the connection of PostgreSQL, a secrets back end that of Kafka."""
    of_stack = scheduler.stack.airflow.environment()
    held = json.loads(of_stack["AIRFLOW_CONN_EPOCHLINE_POSTGRES"])
    scheduler.call("POST", "/api/v2/connections", {"connection_id": POSTGRES, **held})
    (tmp_path / "connections.json").write_text(
        json.dumps({KAFKA: json.loads(kafka_connection(scheduler.stack.kafka.bootstrap_servers))})
    )
    foreign = ("AIRFLOW", "EPOCHLINE", "PG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
        "EPOCHLINE_HOME": str(tmp_path / "no stack"),
        "EPOCHLINE_DAGS": str(AIRFLOW_DAGS),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(FUNCTIONS), os.environ.get("PYTHONPATH")])),
        "COLUMNS": "300",
        "EPOCHLINE_AIRFLOW_URL": scheduler.stack.airflow.url,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__SECRETS__BACKEND": FILES,
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
            {"connections_file_path": str(tmp_path / "connections.json")}
        ),
        **{name: of_stack[name] for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__CORE__FERNET_KEY")},
    }  # fmt: skip
    secrets = credentials.require(scheduler.stack.home).model_dump(exclude={"kafka_cluster_id"})
    hidden = [*secrets.values(), "a-secret-word"]

    def run(*arguments: str, code: int = 0, **variables: str | None) -> str:
        command = [sys.executable, "-c", "from epochline.cli import main; main()", *arguments]
        changed = {name: value for name, value in (environment | variables).items() if value is not None}
        done = subprocess.run(command, env=changed, cwd=tmp_path, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        given = [value for name, value in variables.items() if name.endswith(("TOKEN", "PASSWORD"))]
        assert not [secret for secret in (*hidden, *given) if secret and secret in said]
        assert not (tmp_path / "no stack").exists()
        return " ".join(said.split())

    yield run
    scheduler.call("DELETE", f"/api/v2/connections/{POSTGRES}")


def login_of(scheduler: Scheduler, user: str = "admin") -> dict[str, str]:
    passwords = json.loads(scheduler.stack.airflow.password_file.read_text())
    return {"EPOCHLINE_AIRFLOW_USER": user, "EPOCHLINE_AIRFLOW_PASSWORD": passwords[user]}


def token_of(scheduler: Scheduler) -> dict[str, str]:
    return {"EPOCHLINE_AIRFLOW_TOKEN": rest.token(scheduler.stack.airflow)}


def test_a_run_is_started_followed_and_read_by_address_with_a_token_and_with_a_login(
    scheduler: Scheduler, elsewhere: Elsewhere
) -> None:
    """Nothing of the stack's home is visible, and each connection comes from where Airflow keeps it."""
    scheduler.prepare("elsewhere", {0: ["good"], 1: ["fine"], 2: [], 3: []})
    token, login = token_of(scheduler), login_of(scheduler)

    assert "is committed: 2 records read" in elsewhere("trigger", "elsewhere", **token)
    assert "nothing to read" in elsewhere("trigger", "elsewhere", **login)
    logs = elsewhere("logs", "elsewhere", **token)
    scheduler.pause("listed", True)
    # The folder also has a pipeline whose connection is nowhere, and `list` names it.
    listed = elsewhere("list", **login, code=1)
    unknown = elsewhere("list", EPOCHLINE_AIRFLOW_TOKEN="not-a-secret-token", code=1)

    assert "job.started pipeline=elsewhere epoch=1" in logs
    assert logs.endswith("epoch 1 of elsewhere is COMMITTED")
    assert "DAG paused" in listed
    assert "next runs are unknown" not in listed
    assert "next runs are unknown: Airflow at" in unknown


def test_status_and_doctor_say_which_airflow_is_asked_and_what_holds_each_connection(
    scheduler: Scheduler, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """K21, SEC-4: no password is shown."""
    (tmp_path / "dags").mkdir()
    login = {**login_of(scheduler), "EPOCHLINE_DAGS": str(tmp_path / "dags")}

    shown = elsewhere("status", **login, code=3)
    told = json.loads(elsewhere("status", "--json", **login, code=3))
    checked = elsewhere("doctor", **login)
    own = elsewhere("status", **login, AIRFLOW_CONN_EPOCHLINE_KAFKA="kafka://broker:9092", code=3)
    no_file = {"AIRFLOW__SECRETS__BACKEND_KWARGS": '{"connections_file_path": "/none.json"}'}
    passed_over = json.loads(elsewhere("status", "--json", **login, **no_file, code=3))["connections"]

    url = scheduler.stack.airflow.url
    assert f"trigger, logs and list ask: {url} (from EPOCHLINE_AIRFLOW_URL, version 3.3.2)" in shown
    assert told["asks"] == {"url": url, "from": "EPOCHLINE_AIRFLOW_URL", "version": "3.3.2", "error": None}
    places = {POSTGRES: "Airflow's metadata database", KAFKA: f"Airflow's secrets back end {FILES}"}
    assert told["connections"] == {**places, "spark_default": None}
    failed = f"Airflow's secrets back end {FILES} (failed: FileNotFoundError)"
    assert passed_over == {POSTGRES: f"{places[POSTGRES]}, after {failed}", KAFKA: None, "spark_default": None}
    assert f"ok connection {POSTGRES}: PostgreSQL: from {places[POSTGRES]}" in checked
    assert f"ok connection {KAFKA}: Kafka: from {places[KAFKA]}" in checked
    assert f"airflow_api EPOCHLINE_AIRFLOW_URL: Airflow 3.3.2 at {url} takes the login admin" in checked
    assert f"connection {KAFKA}: AIRFLOW_CONN_EPOCHLINE_KAFKA" in own


def test_a_connection_that_is_nowhere_is_refused_with_every_place_that_was_asked(
    scheduler: Scheduler, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    asked = (
        "connection 'nowhere' is not known here. Asked: the embedded stack (it has epochline_postgres,"
        " epochline_writer, epochline_reader and epochline_kafka); Airflow's secrets back end {files}; Airflow's"
        " metadata database{failed}. Set AIRFLOW_CONN_NOWHERE as Airflow has it."
    )
    sql = ("sql", "SELECT 1", "--connection", "nowhere")

    assert asked.format(files=FILES, failed="") in elsewhere(*sql, code=1)

    away = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://me:a-secret-word@127.0.0.1:1/none"}
    said = elsewhere(*sql, code=1, **away, AIRFLOW__SECRETS__BACKEND_KWARGS='{"connections_file_path": "/none.json"}')
    assert asked.format(files=f"{FILES} (failed: FileNotFoundError)", failed=" (failed: OperationalError)") in said

    names = ("DATABASE__SQL_ALCHEMY_CONN", "SECRETS__BACKEND", "SECRETS__BACKEND_KWARGS")
    bare = {**dict.fromkeys(f"AIRFLOW__{name}" for name in names), "AIRFLOW_HOME": str(tmp_path / "bare")}
    assert "no Airflow is configured here" in elsewhere(*sql, code=1, **bare)
    assert not (tmp_path / "bare").exists(), "an Airflow without a configuration was imported"


def test_what_airflow_refuses_is_said_with_what_to_change(scheduler: Scheduler, elsewhere: Elsewhere) -> None:
    """SEC-4: a wrong password or token is not repeated."""
    scheduler.prepare("elsewhere", {})
    scheduler.pause("listed", True)
    wrong = {"EPOCHLINE_AIRFLOW_TOKEN": "not-a-secret-token"}
    wrong_login = {**login_of(scheduler), "EPOCHLINE_AIRFLOW_PASSWORD": "a-secret-guess"}

    def refused(pipeline: str, **variables: str) -> str:
        return elsewhere("trigger", pipeline, code=1, **variables)

    at = f"error: Airflow at {scheduler.stack.airflow.url}"
    assert f"{at} does not accept the token of EPOCHLINE_AIRFLOW_TOKEN (HTTP 403: Invalid" in refused(
        "elsewhere", **wrong
    )
    assert f"{at} does not accept the login admin of EPOCHLINE_AIRFLOW_USER" in refused("elsewhere", **wrong_login)
    viewer = refused("elsewhere", **login_of(scheduler, "viewer"))
    assert "does not let the login viewer" in viewer
    assert "start a run of DAG elsewhere (HTTP 403" in viewer
    missing = refused("no_such_dag", **token_of(scheduler))
    assert f"{at} has no DAG 'no_such_dag'. It reads its DAGs from" in missing
    assert f"{AIRFLOW_DAGS} (bundle dags-folder)" in missing
    assert "DAG listed is paused, so a run would wait for ever" in refused("listed", **token_of(scheduler))
    assert "its own host: run `airflow` there" in elsewhere("airflow", "version", code=1)
