"""Connections of a host, whichever way it looks them up, and what is made of them."""

import json
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from psycopg2.extensions import parse_dsn

from epochline import Avro, KafkaSource
from epochline.adapters import Adapters
from epochline.cli import connections
from epochline.config.connections import Connection, Connections, JobCredentials, spark_writers
from epochline.errors import ConfigurationError
from epochline.local.credentials import VIEWER
from epochline.protocol.staging import StagingTicket
from tests.declaring import pipeline

HELD: dict[str, Any] = {
    "db": {"host": "db", "schema": "target", "login": "me", "password": "p@ss/1", "extra": {"sslmode": "require"}},
    "six": {"host": "::1", "port": 6432, "schema": "target"},
    "two": {"host": "one, two:6433,[::1]", "port": 6432, "schema": "target"},
    "replica": {"host": "one,two", "schema": "target", "extra": {"target_session_attrs": "any"}},
    "jobs": {"host": "db", "schema": "target", "login": "job"},
    "empty": {},
    "brokers": {"host": "k1", "port": 9093},
}
CONNECTIONS = Connections(lambda one: Connection(where=f"test connection {one!r}", **HELD[one]))


TICKET = StagingTicket(pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name="a", tables=())


def credentials(writer: str | None = None) -> JobCredentials:
    source = KafkaSource(topics="t", connection="brokers")
    declared = pipeline(source=source, postgres_connection="db", writer_connection=writer)
    return Adapters(look_up=CONNECTIONS.look_up, application_name="tests").job_credentials(declared, TICKET)


def test_a_dsn_is_read_back_by_libpq() -> None:
    assert parse_dsn(CONNECTIONS.postgres_dsn("db")) == {
        "host": "db", "port": "5432", "dbname": "target", "user": "me", "password": "p@ss/1", "sslmode": "require",
    }  # fmt: skip
    assert parse_dsn(CONNECTIONS.postgres_dsn("six")) == {"host": "::1", "port": "6432", "dbname": "target"}
    assert parse_dsn(CONNECTIONS.postgres_dsn("two")) == {
        "host": "one,two,::1", "port": "6432,6433,6432", "dbname": "target", "target_session_attrs": "read-write",
    }  # fmt: skip
    assert parse_dsn(CONNECTIONS.postgres_dsn("replica"))["target_session_attrs"] == "any"


def test_what_a_connection_lacks_is_said_with_its_name() -> None:
    with pytest.raises(ConfigurationError, match="^test connection 'empty' needs a host and a database"):
        CONNECTIONS.postgres_dsn("empty")
    with pytest.raises(ConfigurationError, match="^test connection 'empty' names no brokers"):
        CONNECTIONS.kafka_settings("empty")


@pytest.mark.parametrize(
    ("writer", "login", "checked"),
    [(None, "me", []), ("jobs", "job", [("me", "job")])],
    ids=["the ledger's", "its own"],
)
def test_a_job_is_given_the_writer_s_login_if_one_is_declared(
    writer: str | None, login: str, checked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = mock.Mock()
    monkeypatch.setattr("epochline.postgres.ledger.writer.check_writer", check)

    given = credentials(writer)

    assert parse_dsn(given.dsn)["user"] == login
    assert given.kafka == {"bootstrap.servers": "k1:9093"}
    assert given.registries == {}
    assert [tuple(parse_dsn(dsn)["user"] for dsn in call.args[:2]) for call in check.call_args_list] == checked


def test_no_text_form_shows_a_password() -> None:
    assert "p@ss" not in repr(CONNECTIONS.look_up("db"))
    assert "p%40ss" not in repr(credentials())


@pytest.mark.parametrize(
    ("master", "conf", "writers"),
    [
        ("local[3]", {}, 3), ("local[3,2]", {}, 3), ("local", {}, 1), ("local[3]", {"spark.cores.max": "8"}, 3),
        ("spark://m:7077", {"spark.cores.max": "8"}, 8), ("yarn", {"spark.executor.instances": "4"}, 4),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8), ("yarn", {}, None),
    ],
)  # fmt: skip
def test_how_many_sessions_write_is_read_from_master_and_settings(
    master: str, conf: dict[str, str], writers: int | None
) -> None:
    assert spark_writers(conf, master) == writers


SECRET = "pa ss/word@%"

pytestmark = pytest.mark.usefixtures("no_stack")

OTHER = {
    "conn_type": "postgres", "host": "db.example", "port": 6432, "schema": "target", "login": "me", "password": SECRET,
    "extra": {"sslmode": "require"},
}  # fmt: skip


@pytest.mark.parametrize(
    "held",
    [json.dumps(OTHER), "postgres://me:pa%20ss%2Fword%40%25@db.example:6432/target?sslmode=require"],
    ids=["json", "uri"],
)
def test_a_postgres_connection_becomes_a_dsn_that_libpq_reads_back(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", held)

    assert parse_dsn(connections.adapters().postgres_dsn("other")) == {
        "host": "db.example", "port": "6432", "dbname": "target", "user": "me", "password": SECRET,
        "sslmode": "require",
    }  # fmt: skip


@pytest.mark.parametrize(
    "held",
    [
        '{"conn_type": "kafka", "extra": {"bootstrap.servers": "k1:9092,k2:9092"}}',
        '{"conn_type": "kafka", "extra": "{\\"bootstrap.servers\\": \\"k1:9092,k2:9092\\"}"}',
        "kafka://?__extra__=%7B%22bootstrap.servers%22%3A+%22k1%3A9092%2Ck2%3A9092%22%7D",
    ],
    ids=["json", "json in json", "uri"],
)
def test_brokers_come_from_the_extra(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", held)

    assert connections.adapters().kafka_settings() == {"bootstrap.servers": "k1:9092,k2:9092"}


def test_a_connection_that_cannot_be_read_is_named_and_its_password_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", '{"password": "hidden-pw", "port": "x"}')

    with pytest.raises(ConfigurationError, match="AIRFLOW_CONN_EPOCHLINE_POSTGRES cannot be understood") as raised:
        connections.adapters().postgres_dsn()

    assert "hidden-pw" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_registry_is_an_http_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"conn_type": "http", "host": "r", "port": 8081, "schema": "https", "login": "me", "password": "pw"}
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", json.dumps(held))
    declared = pipeline(parse=Avro(columns={"a": "text"}, registry="theirs"))

    assert connections.adapters().registries_of(declared) == {
        "theirs": {"url": "https://r:8081", "login": "me", "password": "pw"}
    }
    monkeypatch.delenv("AIRFLOW_CONN_THEIRS")
    with pytest.raises(ConfigurationError, match="AIRFLOW_CONN_THEIRS"):
        connections.adapters().registries_of(declared)


def test_without_a_connection_and_a_stack_the_error_says_what_to_run_or_to_set() -> None:
    with pytest.raises(ConfigurationError, match="epochline up"):
        connections.adapters().postgres_dsn()
    with pytest.raises(ConfigurationError, match="epochline up"):
        connections.adapters().kafka_settings()
    with pytest.raises(ConfigurationError, match="AIRFLOW_CONN_MINE"):
        connections.adapters().postgres_dsn("mine")


def test_without_a_connection_the_running_stack_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def dsn(login: str) -> str:
        return f"postgresql://{login}:{quote(SECRET, safe='')}@h:5/epochline"

    kafka, postgres = SimpleNamespace(pid=1, bootstrap_servers="127.0.0.1:1"), SimpleNamespace(pid=1, dsn=dsn)
    running = SimpleNamespace(home=SimpleNamespace(exists=lambda: True), kafka=kafka, postgres=postgres)
    monkeypatch.setattr("epochline.local.stack.Stack", lambda: running)

    assert connections.adapters().kafka_settings() == {"bootstrap.servers": "127.0.0.1:1"}
    assert parse_dsn(connections.adapters().postgres_dsn("epochline_reader")) == {
        "host": "h", "port": "5", "dbname": "epochline", "user": VIEWER, "password": SECRET,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("held", "master"),
    [
        (None, "local[*]"),
        ('{"conn_type": "spark", "host": "local[2]"}', "local[2]"),
        ('{"conn_type": "spark", "host": "spark://m", "port": 7077}', "spark://m:7077"),
        ('{"conn_type": "spark_connect", "host": "localhost", "port": 15002}', "local[*]"),
        ("spark-connect://localhost:15002", "local[*]"),
    ],
    ids=["none", "local", "cluster", "server", "server as a URI"],
)
def test_the_spark_master_is_that_of_the_connection(
    held: str | None, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if held:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", held)

    assert connections.spark_master("spark_default") == master
