"""Connection details of a job: a JSON file that only its owner can read, named by an environment variable.

Arguments, Spark settings and options would show them in ``ps``, the UI and the event log.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from epochline.config.connections import Connection, JobCredentials
from epochline.config.kafka import broker_settings
from epochline.config.logins import divided
from epochline.errors import ConfigurationError

__all__ = ["CREDENTIALS_VARIABLE", "JobCredentials", "read_credentials"]

CREDENTIALS_VARIABLE = "EPOCHLINE_CREDENTIALS"
"""Environment variable with the path of the file."""

_NEEDED = {
    "postgres": 'a "dsn" that libpq understands: postgresql://user:pw@host:port/db',
    "kafkas": "the properties of Kafka, by connection id",
    "sources": "the fields of a connection (host, port, login, …) by connection id",
    "registries": 'a "url", and optionally "login" and "password", by connection id',
    "spark": 'a "server" such as sc://localhost:15002/;token=…',
}


def read_credentials(environment: Mapping[str, str] = os.environ) -> JobCredentials:
    """Read the credentials file that the environment names.

    The file holds ``{"postgres": {"dsn": "postgresql://…"}, "kafka": {"bootstrap.servers": "…", …}}``. ``kafka`` takes
    the properties of a connection's extra (`epochline.config.kafka`), or null for a pipeline that reads no Kafka. For
    a pipeline with several sources, ``"kafkas"`` holds such properties by connection id, and ``kafka`` is null. A
    pipeline with Avro also needs ``"registries": {"connection id": {"url": "http://…", "login": "…", "password":
    "…"}}``. A source of the user's own with a connection needs ``"sources"``: the fields of
    `epochline.config.connections.Connection`, by connection id. A job on a Spark Connect server needs ``"spark":
    {"server": "sc://host:port/;token=…"}``. With ``"delete_after_reading": true``, for a file written for a single job,
    the file is deleted.

    Raises `ConfigurationError` if no file is named, other users can read it, or it is incomplete. The message shows no
    content of the file.
    """
    name = environment.get(CREDENTIALS_VARIABLE)
    if not name:
        raise ConfigurationError(
            f"{CREDENTIALS_VARIABLE} is not set; it must name the JSON file with the connection details, mode 0600"
        )
    text = _read_private(Path(name))
    try:
        content = json.loads(text)
    except ValueError:
        # The decoder's message would show part of the file.
        raise ConfigurationError(f"{name}: is not JSON") from None
    credentials = _checked(name, content)
    if content.get("delete_after_reading") is True:
        Path(name).unlink(missing_ok=True)
    return credentials


def _read_private(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise ConfigurationError(
                    f"{path}: other users may read it (mode {stat.S_IMODE(status.st_mode):04o}); run chmod 600"
                )
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError(f"{path}: cannot be read ({reason})") from None


def _checked(name: str, content: Any) -> JobCredentials:
    with _section(name, "postgres"):
        dsn = content["postgres"]["dsn"]
        parse_dsn(divided(dsn)[0])
    kafka = content.get("kafka", {})
    if kafka is not None:  # An explicit null stands for a pipeline that reads no Kafka.
        kafka = broker_settings(f'{name}: "kafka"', _texts(kafka) if isinstance(kafka, dict) else {})
    with _section(name, "kafkas"):
        kafkas = {
            connection: broker_settings(f'{name}: "kafkas" of {connection}', _texts(properties))
            for connection, properties in content.get("kafkas", {}).items()
        }
    with _section(name, "sources"):
        sources = {connection: Connection(**fields) for connection, fields in content.get("sources", {}).items()}
    with _section(name, "registries"):
        registries = {connection: _registry(settings) for connection, settings in content.get("registries", {}).items()}
    with _section(name, "spark"):
        server = content.get("spark", {}).get("server")
        if server is not None and not server.startswith("sc://"):
            raise ValueError
    return JobCredentials(
        dsn=dsn, kafka=kafka or {}, kafkas=kafkas, source_connections=sources, registries=registries, server=server
    )


@contextmanager
def _section(name: str, section: str) -> Iterator[None]:
    """Say what a section needs if it cannot be read. The error itself may show part of the file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, psycopg2.ProgrammingError):
        raise ConfigurationError(f'{name}: "{section}" needs {_NEEDED[section]}') from None


def _texts(properties: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in properties.items()}


def _registry(settings: dict[str, str]) -> dict[str, str]:
    if not settings["url"] or not set(settings) <= {"url", "login", "password"}:
        raise ValueError
    if not all(isinstance(value, str) for value in settings.values()):
        raise TypeError
    return settings
