"""Connections of the command line: an Airflow connection in the environment, else the embedded stack's.

``AIRFLOW_CONN_<ID>`` is read without Airflow, in both of its forms: JSON and URI.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from epochline.adapters import Adapters
from epochline.config.connections import KAFKA, POSTGRES, SPARK_CONNECT, Connection
from epochline.errors import ConfigurationError
from epochline.local.credentials import JOB, VIEWER

_LOGINS = {POSTGRES: "epochline", "epochline_writer": JOB, "epochline_reader": VIEWER}
"""Connections to the target database that the embedded stack makes, and their logins."""


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
        return _connection(variable(connection_id), json.loads(text) if text.startswith("{") else _parts(text))
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


def _connection(where: str, content: Mapping[str, Any]) -> Connection:
    extra = content.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    port = content.get("port")
    return Connection(
        where=where,
        kind=content.get("conn_type") or "",
        port=int(port) if port else None,
        extra={str(key): str(value) for key, value in extra.items()},
        **{name: content.get(name) or "" for name in ("host", "schema", "login", "password")},
    )


def _look_up(connection_id: str) -> Connection:
    """The connection of the environment, else of the embedded stack.

    Raises:
        ConfigurationError: there is no such connection, it cannot be understood, or the stack does not run.
    """
    connection = in_environment(connection_id)
    if connection is not None:
        return connection
    if connection_id not in (*_LOGINS, KAFKA):
        raise ConfigurationError(
            f"connection {connection_id!r} is not known here: set {variable(connection_id)} as Airflow has it (the"
            f" embedded stack has {', '.join(_LOGINS)} for PostgreSQL and {KAFKA} for Kafka)."
        )
    from epochline.local.stack import Stack

    stack, where = Stack(), f"connection {connection_id!r} of the embedded stack"
    if connection_id == KAFKA:
        if stack.kafka.pid is None:
            raise ConfigurationError(f"no Kafka runs in {stack.home}; start it with `epochline up`.")
        return Connection(where=where, extra={"bootstrap.servers": stack.kafka.bootstrap_servers})
    if stack.postgres.pid is None:
        raise ConfigurationError(f"no PostgreSQL runs in {stack.home}; start it with `epochline up`.")
    return _connection(where, _parts(stack.postgres.dsn(login=_LOGINS[connection_id])))


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
    return Adapters(look_up=_look_up, application_name="epochline cli")
