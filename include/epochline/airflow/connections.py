"""Airflow connections as what the use cases need: a ledger, a Kafka, a run. Tasks reach PostgreSQL by these alone."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from epochline.config.kafka import broker_settings
from epochline.config.registry import registry_connections
from epochline.config.registry import registry_settings as checked_registry
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochlineError
from epochline.protocol.epoch import Interval, Run

if TYPE_CHECKING:
    from epochline.ports import Ledger, OffsetSource

_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "channel_binding")


@contextmanager
def epochline_errors() -> Iterator[None]:
    """Turn our errors into Airflow's, so that a task is tried again only where that helps."""
    try:
        yield
    except EpochlineError as error:
        message = f"{type(error).__name__}: {error}"
        if error.retryable:
            raise AirflowException(message) from error
        raise AirflowFailException(message) from error


def run_of(context: Mapping[str, Any]) -> Run:
    """The DAG run that a task belongs to. Try numbers and dates decide nothing (INV-8)."""
    return Run(dag_id=context["dag_run"].dag_id, run_id=context["dag_run"].run_id, host=socket.gethostname())


def interval_of(context: Mapping[str, Any]) -> Interval | None:
    """The data interval of a backfill run; None of any other run, whose dates decide nothing (INV-8).

    Raises:
        ConfigurationError: the run has no interval, because its DAG's timetable makes none.
    """
    dag_run = context["dag_run"]
    if dag_run.run_type != "backfill":
        return None
    start, until = dag_run.data_interval_start, dag_run.data_interval_end
    if start is None or until is None or start >= until:
        raise ConfigurationError(
            f"backfill run {dag_run.run_id} of {dag_run.dag_id} has no data interval ({start} to {until}), so it does"
            " not say what to read. Nothing was planned. Make its DAG with `epoch_dag`: its timetable gives intervals."
        )
    return Interval(start=start, until=until)


def postgres_dsn(connection_id: str) -> str:
    """The libpq URL of a connection, password included. Never log it.

    Raises:
        ConfigurationError: the connection names no host or database.
    """
    from sqlalchemy import URL

    connection = Connection.get(connection_id)
    if not connection.host or not connection.schema:
        raise ConfigurationError(f"Airflow connection {connection_id!r} needs a host and a database (schema).")
    extra = connection.extra_dejson
    url = URL.create(
        "postgresql",
        username=connection.login,
        password=connection.password,
        host=connection.host,
        port=connection.port or 5432,
        database=connection.schema,
        query={name: str(extra[name]) for name in _LIBPQ if name in extra},
    )
    return url.render_as_string(hide_password=False)


def kafka_settings(connection_id: str) -> dict[str, str]:
    """The Kafka properties of a connection: its extra as JSON, its host and port, its login. Never log them.

    Raises:
        ConfigurationError: no brokers are named, or a property is not supported or does not fit.
    """
    connection = Connection.get(connection_id)
    return broker_settings(
        f"Airflow connection {connection_id!r}",
        {str(key): str(value) for key, value in connection.extra_dejson.items()},
        host=connection.host or "",
        port=connection.port,
        login=connection.login or "",
        password=connection.password or "",
    )


def ledger_at(connection_id: str) -> Ledger:
    """The ledger of a database, for what is done to pipelines that need not be declared any more."""
    from epochline.postgres.ledger.transactions import PostgresLedger
    from epochline.sinks import sinks_by

    return PostgresLedger(postgres_dsn(connection_id), outlets=sinks_by(kafka_settings))


def registry_settings(connection_id: str) -> dict[str, str]:
    """How a schema registry is reached: the host, port, schema, login and path of an http connection. Never log it.

    Raises:
        ConfigurationError: no host is named, or something is given that would not be used.
    """
    connection = Connection.get(connection_id)
    return checked_registry(
        f"Airflow connection {connection_id!r}",
        host=connection.host or "",
        port=connection.port,
        scheme=connection.schema or "",
        login=connection.login or "",
        password=connection.password or "",
        extra={str(key): str(value) for key, value in connection.extra_dejson.items()},
    )


def registries_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """How the schema registries that the pipeline's formats name are reached, by connection id. Never log it.

    Raises:
        ConfigurationError: a connection names no registry, or there is none.
    """
    return {one: registry_settings(one) for one in registry_connections(pipeline)}


def ledger_of(pipeline: Pipeline) -> Ledger:
    """The ledger behind the pipeline's PostgreSQL connection."""
    from epochline.failpoints import watched
    from epochline.postgres.ledger.transactions import PostgresLedger
    from epochline.sinks import sinks_by

    dsn = postgres_dsn(pipeline.postgres_connection)
    lock_timeout = pipeline.lock_timeout.total_seconds()
    return watched(PostgresLedger(dsn, lock_timeout=lock_timeout, outlets=sinks_by(kafka_settings)))


def offsets_of(pipeline: Pipeline) -> OffsetSource:
    """The Kafka behind the pipeline's connection."""
    from epochline.failpoints import watched_source
    from epochline.kafka.source import KafkaOffsets

    return watched_source(KafkaOffsets(kafka_settings(pipeline.source.connection)))


def writers_of(pipeline: Pipeline) -> int | None:
    """How many sessions will write at once: Spark's cores, where the connection or the declaration says how many."""
    conf = pipeline.spark_conf
    if "spark.cores.max" in conf:
        return int(conf["spark.cores.max"])
    if "spark.executor.instances" in conf:
        return int(conf["spark.executor.instances"]) * int(conf.get("spark.executor.cores", "1"))
    local = re.match(r"^local(?:\[(\d+|\*)(?:,.*)?\])?$", Connection.get(pipeline.spark_connection).host or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
