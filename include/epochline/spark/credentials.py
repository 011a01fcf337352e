"""Connection details of a job: a JSON file that only its owner can read, named by an environment variable.

Arguments, Spark settings and options would show them in ``ps``, the UI and the event log.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from epochline.config.connections import Connection, JobCredentials
from epochline.config.kafka import broker_settings
from epochline.errors import ConfigurationError

__all__ = ["CREDENTIALS_VARIABLE", "JobCredentials", "read_credentials"]

CREDENTIALS_VARIABLE = "EPOCHLINE_CREDENTIALS"
"""Environment variable with the path of the file."""


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

    Raises:
        ConfigurationError: no file is named, other users can read it, or it is incomplete. The message shows no
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
    sections = content if isinstance(content, dict) else {}
    postgres, kafka = sections.get("postgres"), sections.get("kafka")
    dsn = postgres.get("dsn") if isinstance(postgres, dict) else None
    if not isinstance(dsn, str) or not _is_dsn(dsn):
        raise ConfigurationError(
            f'{name}: "postgres" needs a "dsn" that libpq understands: postgresql://user:pw@host:port/db'
        )
    # An explicit null: a pipeline that reads no Kafka.
    without_kafka = kafka is None and "kafka" in sections
    given = {str(key): str(value) for key, value in kafka.items()} if isinstance(kafka, dict) else {}
    return JobCredentials(
        dsn=dsn,
        kafka={} if without_kafka else broker_settings(f'{name}: "kafka"', given),
        kafkas=_kafkas(name, sections.get("kafkas", {})),
        registries=_registries(name, sections.get("registries", {})),
        source_connections=_sources(name, sections.get("sources", {})),
        server=_server(name, sections.get("spark", {})),
    )


def _kafkas(name: str, section: Any) -> dict[str, dict[str, str]]:
    if not isinstance(section, dict) or not all(isinstance(properties, dict) for properties in section.values()):
        raise ConfigurationError(f'{name}: "kafkas" needs the properties of Kafka, by connection id')
    return {
        connection: broker_settings(
            f'{name}: "kafkas" of {connection}', {str(key): str(value) for key, value in properties.items()}
        )
        for connection, properties in section.items()
    }


def _sources(name: str, section: Any) -> dict[str, Connection]:
    try:
        return {connection: Connection(**fields) for connection, fields in section.items()}
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f'{name}: "sources" needs the fields of a connection (host, port, login, …) by connection id'
        ) from None


def _server(name: str, section: Any) -> str | None:
    url = section.get("server") if isinstance(section, dict) else ""
    if url is not None and not str(url).startswith("sc://"):
        raise ConfigurationError(f'{name}: "spark" needs a "server" such as sc://localhost:15002/;token=…')
    return url


def _registries(name: str, section: Any) -> dict[str, dict[str, str]]:
    known = section if isinstance(section, dict) else {"": section}
    for settings in known.values():
        texts = isinstance(settings, dict) and all(isinstance(value, str) for value in settings.values())
        if not texts or not settings.get("url") or not set(settings) <= {"url", "login", "password"}:
            raise ConfigurationError(
                f'{name}: "registries" needs a "url", and optionally "login" and "password", by connection id'
            )
    return known


def _is_dsn(dsn: str) -> bool:
    try:
        parse_dsn(dsn)
    except psycopg2.ProgrammingError:
        return False
    return True
