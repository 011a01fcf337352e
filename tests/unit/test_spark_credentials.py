"""The credentials of a job: their file, their way to Spark's driver, and what is made of a failed job's message."""

import json
import os
import stat
import subprocess
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder

from epochline.airflow.handover import credentials_file as file_of_credentials
from epochline.airflow.handover import environment_of_job
from epochline.config.connections import Connection
from epochline.errors import ConfigurationError, EpochFencedError
from epochline.spark.credentials import CREDENTIALS_VARIABLE, read_credentials
from epochline.spark.failure import epochline_error_from
from epochline.spark.session import in_session
from tests.commands import python

_GOOD = {"postgres": {"dsn": "postgresql://u:hidden@h:1/d"}, "kafka": {"bootstrap.servers": "b:1"}}


def credentials_file(folder: Path, content: str, mode: int = 0o600) -> dict[str, str]:
    path = folder / "credentials.json"
    path.write_text(content)
    path.chmod(mode)
    return {CREDENTIALS_VARIABLE: str(path)}


@pytest.mark.parametrize("registries", [{}, {"one": {"url": "http://h:1", "login": "me", "password": "hidden"}}])
def test_a_private_file_is_read_and_shows_no_secret(tmp_path: Path, registries: dict[str, dict[str, str]]) -> None:
    more = {"registries": registries} if registries else {}
    credentials = read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | more)))

    assert credentials.dsn == "postgresql://u:hidden@h:1/d"
    assert credentials.kafka == {"bootstrap.servers": "b:1"}
    assert credentials.registries == registries
    assert "hidden" not in repr(credentials)


def test_only_an_explicit_null_says_that_a_pipeline_reads_no_kafka(tmp_path: Path) -> None:
    """N2."""
    assert read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | {"kafka": None}))).kafka == {}


def test_a_source_of_a_users_own_gets_its_connection_and_shows_no_secret(tmp_path: Path) -> None:
    """N2."""
    held = Connection(where="shop", host="h", port=1, schema="d", login="me", password="hidden", extra={"a": "b"})

    credentials = read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | {"sources": {"shop": asdict(held)}})))

    assert credentials.source_connections == {"shop": held}
    assert "hidden" not in repr(credentials)


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (json.dumps(_GOOD | {"sources": {"shop": {"where": "shop", "hidden": "x"}}}), 0o600, "fields of a connection"),
        (json.dumps(_GOOD | {"sources": {"shop": "hidden"}}), 0o600, "fields of a connection"),
        (json.dumps(_GOOD | {"registries": {"one": {"login": "hidden"}}}), 0o600, "url"),
        (json.dumps(_GOOD | {"registries": {"one": {"url": "http://h", "hidden": "x"}}}), 0o600, "url"),
        (json.dumps(_GOOD | {"registries": ["hidden"]}), 0o600, "url"),
        (json.dumps(_GOOD), 0o644, "chmod 600"),
        ("hidden{", 0o600, "not JSON"),
        (json.dumps({"postgres": {"dsn": "hidden"}, "kafka": _GOOD["kafka"]}), 0o600, "dsn"),
        (json.dumps({"postgres": _GOOD["postgres"]}), 0o600, "bootstrap.servers"),
        (json.dumps(["hidden"]), 0o600, "dsn"),
        (json.dumps(_GOOD | {"kafka": None, "kafkas": []}), 0o600, "kafkas"),
        (json.dumps(_GOOD | {"kafka": None, "kafkas": {"shop": "shop:1"}}), 0o600, "kafkas"),
        (json.dumps(_GOOD | {"kafka": None, "kafkas": {"shop": {}}}), 0o600, "kafkas"),
    ],
    ids=[
        "source with a stranger", "no connection", "registry without url", "registry with a stranger", "no registries", "readable by others", "no JSON", "bad DSN",
        "no servers", "no object", "no brokers", "brokers of no form", "brokers without an address",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_without_showing_it(
    tmp_path: Path, content: str, mode: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_credentials(credentials_file(tmp_path, content, mode))

    assert "hidden" not in str(raised.value)


def test_a_missing_variable_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=CREDENTIALS_VARIABLE):
        read_credentials({})
    with pytest.raises(ConfigurationError, match="absent"):
        read_credentials({CREDENTIALS_VARIABLE: str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Traceback\n  File x\nepochline.errors.EpochFencedError: gone\n", EpochFencedError),
        ("java.lang.OutOfMemoryError", type(None)),
        ("epochline.errors.Nonsense: x", type(None)),
    ],
    ids=["ours", "foreign", "no such class"],
)
def test_a_failed_jobs_text_says_what_happened(text: str, kind: type) -> None:
    assert type(epochline_error_from(RuntimeError(text))) is kind


SESSION = uuid.UUID(int=7, version=4)


@pytest.mark.parametrize("url", ["sc://h:15002", "sc://h:15002/", "sc://h:15002/;", "sc://h:15002/;user_id=ada;"])
def test_a_url_with_or_without_parameters_is_taken(url: str) -> None:
    """Airflow's provider ends the URL of a server without token and login with a slash.

    Accounts of two workers name one user, so that they find one session.
    """
    read = DefaultChannelBuilder(in_session(url, SESSION))

    assert (read.endpoint, read.session_id) == ("h:15002", str(SESSION))
    assert read.userId == ("ada" if "ada" in url else "epochline")


def test_a_token_stays_in_the_url() -> None:
    assert DefaultChannelBuilder(in_session("sc://localhost:1/;token=a-b_c", SESSION)).token == "a-b_c"


CONNECTIONS = {"postgres": {"dsn": "postgresql://u:canary@h:1/d"}, "kafka": {"bootstrap.servers": "b:1"}}
HOLDER = """
import json, os, signal, sys
from epochline.airflow.handover import credentials_file as file_of_credentials
with file_of_credentials(json.loads(sys.argv[1])) as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_only_the_owner_can_read_it_and_it_is_gone_afterwards(folder: Path) -> None:
    """SEC-4."""
    with file_of_credentials(CONNECTIONS) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    assert list(folder.iterdir()) == []


def test_the_driver_deletes_it_as_soon_as_it_is_read() -> None:
    """SEC-4: a task that is killed while Spark works leaves no password behind."""
    with file_of_credentials(CONNECTIONS) as path:
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
    left = Path(python("-c", HOLDER, json.dumps(CONNECTIONS), check=False).stdout.strip())
    assert left.exists()

    with file_of_credentials(CONNECTIONS):
        assert not left.parent.exists()


def test_what_a_living_task_holds_is_left_alone() -> None:
    with file_of_credentials(CONNECTIONS) as first, file_of_credentials(CONNECTIONS) as second:
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
