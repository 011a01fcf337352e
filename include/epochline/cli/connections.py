"""Where the command line finds PostgreSQL and Kafka: an Airflow connection in the environment, else the embedded stack.

``AIRFLOW_CONN_<ID>`` is what the containers of docker-compose.yaml hold; it is read here without Airflow, in both of
its forms (JSON and URI). Without one, the connections that the embedded stack makes are known.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from epochline.config.kafka import broker_settings
from epochline.errors import ConfigurationError
from epochline.local.credentials import JOB, VIEWER

if TYPE_CHECKING:
    from epochline.declare.pipeline import Pipeline
    from epochline.local.stack import Stack
    from epochline.ports import Ledger, OffsetSource

POSTGRES = "epochline_postgres"
_LOGINS = {POSTGRES: "epochline", "epochline_writer": JOB, "epochline_reader": VIEWER}
"""Connections to the target database that the embedded stack makes, and their logins."""
KAFKA = "epochline_kafka"
_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "channel_binding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One connection as the environment names it. Its text form shows no value."""

    host: str = field(repr=False)
    port: int | None = field(repr=False)
    schema: str = field(repr=False)
    login: str = field(repr=False)
    password: str = field(repr=False)
    extra: Mapping[str, str] = field(repr=False)


def variable(connection_id: str) -> str:
    """The environment variable that Airflow reads a connection from."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


def named(connection_id: str) -> Named | None:
    """The connection of the environment, None where there is none.

    Raises:
        ConfigurationError: it cannot be understood; the message shows nothing of it.
    """
    held = os.environ.get(variable(connection_id), "").strip()
    if not held:
        return None
    try:
        return _from_json(held) if held.startswith("{") else _from_uri(held)
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f"{variable(connection_id)} cannot be understood; write it as JSON with conn_type, host, port, login,"
            " password, schema and extra, or as a URI."
        ) from None


def _from_json(held: str) -> Named:
    content = json.loads(held)
    extra = content.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    port = content.get("port")
    return Named(
        host=content.get("host") or "",
        port=int(port) if port else None,
        schema=content.get("schema") or "",
        login=content.get("login") or "",
        password=content.get("password") or "",
        extra={str(key): str(value) for key, value in extra.items()},
    )


def _from_uri(held: str) -> Named:
    parts = urlsplit(held)
    extra: dict[str, Any] = dict(parse_qsl(parts.query))
    if "__extra__" in extra:
        extra = json.loads(extra["__extra__"])
    return Named(
        host=unquote(parts.hostname or ""),
        port=parts.port,
        schema=unquote(parts.path.removeprefix("/")),
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        extra={str(key): str(value) for key, value in extra.items()},
    )


def postgres_dsn(connection_id: str = POSTGRES) -> str:
    """The libpq URL of the target database, password included. Never print it.

    Raises:
        ConfigurationError: there is no such connection, or the stack does not run.
    """
    connection = named(connection_id)
    if connection is None:
        stack = _stack(connection_id, _LOGINS, "PostgreSQL")
        if stack.postgres.pid is None:
            raise ConfigurationError(f"no PostgreSQL runs in {stack.home}; start it with `epochline up`.")
        return stack.postgres.dsn(login=_LOGINS[connection_id])
    if not connection.host or not connection.schema:
        raise ConfigurationError(f"{variable(connection_id)} needs a host and a database (schema).")
    login = quote(connection.login, safe="")
    if connection.password:
        login += f":{quote(connection.password, safe='')}"
    query = urlencode({name: connection.extra[name] for name in _LIBPQ if name in connection.extra})
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    return (
        f"postgresql://{login}@{host}:{connection.port or 5432}/{quote(connection.schema, safe='')}"
        f"{f'?{query}' if query else ''}"
    )


def kafka_settings(connection_id: str = KAFKA) -> dict[str, str]:
    """The Kafka properties of a connection.

    Raises:
        ConfigurationError: there is no such connection, it names no brokers, or the stack does not run.
    """
    connection = named(connection_id)
    if connection is None:
        stack = _stack(connection_id, (KAFKA,), "Kafka")
        if stack.kafka.pid is None:
            raise ConfigurationError(f"no Kafka runs in {stack.home}; start it with `epochline up`.")
        return {"bootstrap.servers": stack.kafka.bootstrap_servers}
    return broker_settings(
        variable(connection_id),
        connection.extra,
        host=connection.host,
        port=connection.port,
        login=connection.login,
        password=connection.password,
    )


def registry_settings(connection_id: str) -> dict[str, str]:
    """How a schema registry is reached. Never print it.

    Raises:
        ConfigurationError: there is no such connection, or it names no registry.
    """
    from epochline.config.registry import registry_settings as checked_registry

    connection = named(connection_id)
    if connection is None:
        raise ConfigurationError(
            f"schema registry {connection_id!r} is not known here: set {variable(connection_id)} as Airflow has it."
        )
    return checked_registry(
        variable(connection_id),
        host=connection.host,
        port=connection.port,
        scheme=connection.schema,
        login=connection.login,
        password=connection.password,
        extra=connection.extra,
    )


def registries_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """How the schema registries that the pipeline's formats name are reached, by connection id. Never print it.

    Raises:
        ConfigurationError: a connection names no registry, or there is none.
    """
    from epochline.config.registry import registry_connections

    return {one: registry_settings(one) for one in registry_connections(pipeline)}


def spark_master(connection_id: str) -> str:
    """The Spark master of a connection, ``local[*]`` where the environment names none."""
    connection = named(connection_id)
    if connection is None or not connection.host:
        return "local[*]"
    return f"{connection.host}:{connection.port}" if connection.port else connection.host


def writers_of(pipeline: Pipeline, master: str) -> int | None:
    """How many sessions Spark will write with at once, None where the master does not say."""
    local = re.match(r"^local(?:\[(\d+|\*)(?:,.*)?\])?$", master)
    if local is None:
        cores = pipeline.spark_conf.get("spark.cores.max")
        return int(cores) if cores else None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)


def ledger_at(connection_id: str) -> Ledger:
    """The ledger of a database, for what is done to pipelines that need not be declared any more."""
    from epochline.postgres.ledger.transactions import PostgresLedger
    from epochline.sinks import sinks_by

    return PostgresLedger(
        postgres_dsn(connection_id), application_name="epochline cli", outlets=sinks_by(kafka_settings)
    )


def ledger_of(pipeline: Pipeline) -> Ledger:
    """The ledger behind the pipeline's PostgreSQL connection."""
    from epochline.failpoints import watched
    from epochline.postgres.ledger.transactions import PostgresLedger
    from epochline.sinks import sinks_by

    return watched(
        PostgresLedger(
            postgres_dsn(pipeline.postgres_connection),
            application_name="epochline cli",
            lock_timeout=pipeline.lock_timeout.total_seconds(),
            outlets=sinks_by(kafka_settings),
        )
    )


def offsets_of(pipeline: Pipeline) -> OffsetSource:
    """The Kafka behind the pipeline's connection."""
    from epochline.failpoints import watched_source
    from epochline.kafka.source import KafkaOffsets

    return watched_source(KafkaOffsets(kafka_settings(pipeline.source.connection)))


@contextmanager
def opened_offsets(connection_id: str) -> Iterator[OffsetSource]:
    """The Kafka behind a connection, asked by one client in the whole block.

    Raises:
        ConfigurationError: there is no such connection, or the stack does not run.
        SourceError: Kafka does not answer, or refuses.
    """
    from epochline.failpoints import watched_source
    from epochline.kafka.source import KafkaOffsets

    source = KafkaOffsets(kafka_settings(connection_id))
    with source.one_client():
        yield watched_source(source)


def _stack(connection_id: str, known: Iterable[str], what: str) -> Stack:
    if connection_id not in known:
        raise ConfigurationError(
            f"connection {connection_id!r} is not known here: set {variable(connection_id)} as Airflow has it (the"
            f" embedded stack has {', '.join(known)} for {what})."
        )
    from epochline.local.stack import Stack

    return Stack()
