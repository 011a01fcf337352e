"""Connections of a host, whichever way it looks them up, and what is made of them."""

from typing import Any
from unittest import mock

import pytest
from psycopg2.extensions import parse_dsn

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.adapters import Adapters
from epochline.config.connections import Connection, Connections, JobCredentials, spark_writers
from epochline.errors import ConfigurationError
from epochline.protocol.staging import StagingTicket

HELD: dict[str, Any] = {
    "db": {"host": "db", "schema": "target", "login": "me", "password": "p@ss/1", "extra": {"sslmode": "require"}},
    "six": {"host": "::1", "port": 6432, "schema": "target"},
    "jobs": {"host": "db", "schema": "target", "login": "job"},
    "empty": {},
    "brokers": {"host": "k1", "port": 9093},
}
CONNECTIONS = Connections(lambda one: Connection(where=f"test connection {one!r}", **HELD[one]))


TICKET = StagingTicket(pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name="a", tables=())


def credentials(writer: str | None = None) -> JobCredentials:
    pipeline = Pipeline(
        name="p", source=KafkaSource(topics="t", connection="brokers"), parse=Text(), postgres_connection="db",
        sinks=PostgresTable(table="t", columns={"value": "text"}), writer_connection=writer,
    )  # fmt: skip
    return Adapters(look_up=CONNECTIONS.look_up, application_name="tests").job_credentials(pipeline, TICKET)


def test_a_dsn_is_read_back_by_libpq() -> None:
    assert parse_dsn(CONNECTIONS.postgres_dsn("db")) == {
        "host": "db", "port": "5432", "dbname": "target", "user": "me", "password": "p@ss/1", "sslmode": "require",
    }  # fmt: skip
    assert parse_dsn(CONNECTIONS.postgres_dsn("six")) == {"host": "::1", "port": "6432", "dbname": "target"}


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
