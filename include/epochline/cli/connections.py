"""Connections of the command line: from the environment, else the embedded stack's, else from Airflow.

``AIRFLOW_CONN_<ID>`` is read without Airflow, in both of its forms: JSON and URI. Where a stack was started, its
connections are the stack's even while it is down, so that no command reaches another database because it is.
"""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from epochline.adapters import Adapters
from epochline.config.connections import KAFKA, POSTGRES, SPARK_CONNECT, Connection
from epochline.errors import ConfigurationError
from epochline.local.credentials import JOB, VIEWER

if TYPE_CHECKING:
    from epochline.local.stack import Stack

_LOGINS = {POSTGRES: "epochline", "epochline_writer": JOB, "epochline_reader": VIEWER}
"""Connections to the target database that the embedded stack makes, and their logins."""

_SPARK = {"spark_default": SPARK_CONNECT, "spark_submit": "spark"}
"""Connections to Spark that the embedded stack's Airflow has, and their types."""

EMBEDDED = "the embedded stack"
"""How the ``place`` of a connection begins that the embedded stack has."""


def variable(connection_id: str) -> str:
    """The environment variable that Airflow reads a connection from."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


def in_environment(connection_id: str) -> Connection | None:
    """The connection that the environment holds, if any.

    Raises:
        ConfigurationError: it cannot be understood; the message shows nothing of it.
    """
    text = os.environ.get(variable(connection_id), "").strip()
    if not text:
        return None
    try:
        content = json.loads(text) if text.startswith("{") else _parts(text)
        return _connection(variable(connection_id), variable(connection_id), content)
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f"{variable(connection_id)} cannot be understood; write it as JSON with conn_type, host, port, login,"
            " password, schema and extra, or as a URI."
        ) from None


def _parts(uri: str) -> dict[str, Any]:
    """What a connection's JSON would say."""
    parts = urlsplit(uri)
    extra: dict[str, Any] = dict(parse_qsl(parts.query))
    texts = {"host": parts.hostname, "schema": parts.path[1:], "login": parts.username, "password": parts.password}
    kind = parts.scheme.replace("-", "_")
    content = {name: unquote(text or "") for name, text in texts.items()}
    return {**content, "conn_type": kind, "port": parts.port, "extra": extra.get("__extra__", extra)}


def _connection(where: str, place: str, content: Mapping[str, Any]) -> Connection:
    extra = content.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    port = content.get("port")
    return Connection(
        where=where,
        place=place,
        kind=content.get("conn_type") or "",
        port=int(port) if port else None,
        extra={str(key): str(value) for key, value in extra.items()},
        **{name: content.get(name) or "" for name in ("host", "schema", "login", "password")},
    )


def look_up(connection_id: str) -> Connection:
    """The connection of an id: of the environment, else of the embedded stack, else of the Airflow of this environment.

    Raises:
        ConfigurationError: there is no such connection, it cannot be understood, or the stack does not run.
    """
    connection = in_environment(connection_id)
    if connection is not None:
        return connection
    from epochline.local.stack import Stack

    stack = Stack()
    if stack.home.exists() and connection_id in (*_LOGINS, KAFKA):
        return _of_stack(stack, connection_id)
    if connection_id in _SPARK and stack.spark.pid is not None:
        place = f"{EMBEDDED} in {stack.home}"
        return Connection(where=f"connection {connection_id!r} of {place}", place=place, kind=_SPARK[connection_id])
    from epochline.cli.airflow_lookups import in_airflow, no_airflow

    missing = no_airflow()
    answer = {"asked": [missing]} if missing else in_airflow(connection_id)
    if "where" in answer:
        place = str(answer["where"])
        return _connection(f"connection {connection_id!r} of {place}", place, answer)
    known = f"the embedded stack (none was started in {stack.home}; `epochline up` starts one)"
    if connection_id not in (*_LOGINS, KAFKA):
        known = f"the embedded stack (it has {', '.join(_LOGINS)} and {KAFKA})"
    raise ConfigurationError(
        f"connection {connection_id!r} is not known here. Asked: {'; '.join([known, *answer['asked']])}. Set"
        f" {variable(connection_id)} as Airflow has it."
    )


def _of_stack(stack: "Stack", connection_id: str) -> Connection:
    place = f"{EMBEDDED} in {stack.home}"
    where = f"connection {connection_id!r} of {place}"
    part, name = (stack.kafka, "Kafka") if connection_id == KAFKA else (stack.postgres, "PostgreSQL")
    if part.pid is None:
        raise ConfigurationError(
            f"no {name} runs in {stack.home}; start it with `epochline up`. To reach another one, set"
            f" {variable(connection_id)}."
        )
    if connection_id == KAFKA:
        return Connection(where=where, place=place, extra={"bootstrap.servers": stack.kafka.bootstrap_servers})
    return _connection(where, place, _parts(stack.postgres.dsn(login=_LOGINS[connection_id])))


def spark_master(connection_id: str) -> str:
    """The Spark master of a connection; ``local[*]`` if the environment names none.

    A Spark Connect server runs jobs of tasks. A command starts Spark in its own process, and needs a master for it.
    """
    connection = in_environment(connection_id)
    if connection is None or not connection.host or connection.kind == SPARK_CONNECT:
        return "local[*]"
    return f"{connection.host}:{connection.port}" if connection.port else connection.host


def adapters() -> Adapters:
    """What reaches the servers of these connections."""
    return Adapters(look_up=look_up, application_name="epochline cli")
