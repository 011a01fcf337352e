"""Connections: how PostgreSQL, Kafka, schema registries and Spark are reached, wherever the host keeps the details."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from epochline.config.kafka import broker_settings
from epochline.errors import ConfigurationError

if TYPE_CHECKING:
    # Commands that read no declaration must not load pydantic.
    from epochline.declare.pipeline import Pipeline

POSTGRES = "epochline_postgres"
KAFKA = "epochline_kafka"
PASSWORD_COMMAND = "password_command"  # noqa: S105 - a name
"""Property of a PostgreSQL connection. libpq knows no such property: no session opens until `config.logins` ran it."""
_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "channel_binding", PASSWORD_COMMAND)


_WITH_PORT = re.compile(r"(?:\[[^\]]*\]|[^:]*)(:\d+)?")
"""A host without a port, or with one; an address of IPv6 has brackets, or else no port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The fields of an Airflow connection. ``where`` names it in errors; its text form shows nothing else.

    ``place`` is what holds it: a variable, the embedded stack, a secrets back end or Airflow's metadata database.
    """

    where: str
    place: str = field(default="", repr=False)
    kind: str = field(default="", repr=False)
    host: str = field(default="", repr=False)
    port: int | None = field(default=None, repr=False)
    schema: str = field(default="", repr=False)
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)


SPARK_CONNECT = "spark_connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCredentials:
    """Connection details of PostgreSQL, Kafka and schema registries. ``repr`` hides the values."""

    dsn: str = field(repr=False)
    kafka: Mapping[str, str] = field(repr=False)
    """The brokers of a pipeline with one source; empty for a custom source."""
    kafkas: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The brokers of a pipeline with several sources, by connection id."""
    source_connections: Mapping[str, Connection] = field(default_factory=dict, repr=False)
    registries: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Schema registries by connection id: ``url`` and optionally ``login`` and ``password``."""
    server: str | None = field(default=None, repr=False)
    """URL of the Spark Connect server that runs the job, with its token; None where spark-submit started the job."""

    def kafka_of(self, connection_id: str) -> Mapping[str, str]:
        """The brokers of a connection; empty if the job was not given them."""
        return self.kafkas.get(connection_id, self.kafka)


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of one host. What the methods return holds passwords: never print or log it."""

    look_up: Callable[[str], Connection]
    """Gives the connection of an id; raises `ConfigurationError` if the host does not know the id."""

    def postgres_dsn(self, connection_id: str = POSTGRES) -> str:
        """The URL of a connection, which `epochline.config.logins.log_in` opens. Raises as `libpq_url`."""
        return libpq_url(self.look_up(connection_id))

    def kafka_settings(self, connection_id: str = KAFKA) -> dict[str, str]:
        """The Kafka properties of a connection; raises `ConfigurationError` as `broker_settings`."""
        at = self.look_up(connection_id)
        return broker_settings(at.where, at.extra, host=at.host, port=at.port, login=at.login, password=at.password)

    def registries_of(self, pipeline: Pipeline) -> dict[str, dict[str, str]]:
        """How the schema registries of a pipeline are reached, by connection id. Raises as `registry_settings`."""
        from epochline.config.registry import registry_connections, registry_settings

        return {asked: registry_settings(self.look_up(asked)) for asked in registry_connections(pipeline)}


def libpq_url(at: Connection) -> str:
    """The libpq URL, with the password, or with the command that prints one.

    A host may be several, with commas between them, each with its own port or the connection's. Sessions then go to the
    one that takes writes, unless the extra has another ``target_session_attrs``.

    Raises:
        ConfigurationError: there is no host, no database, or both a password and a command.
    """
    if not at.host or not at.schema:
        raise ConfigurationError(f"{at.where} needs a host and a database (schema).")
    if at.password and at.extra.get(PASSWORD_COMMAND):
        raise ConfigurationError(f"{at.where} has a password and a {PASSWORD_COMMAND}: remove one of them.")
    login = quote(at.login, safe="")
    if at.password:
        login += f":{quote(at.password, safe='')}"
    hosts = [_with_port(host.strip(), at.port or 5432) for host in at.host.split(",")]
    extra = {"target_session_attrs": "read-write", **at.extra} if len(hosts) > 1 else at.extra
    options = urlencode({name: extra[name] for name in _LIBPQ if name in extra}, quote_via=quote)
    return (
        f"postgresql://{f'{login}@' if login else ''}{','.join(hosts)}/{quote(at.schema, safe='')}"
        f"{f'?{options}' if options else ''}"
    )


def _with_port(host: str, port: int) -> str:
    """A host as it stands in a URL. libpq would take the port at the end of a list for the last host alone."""
    if (named := _WITH_PORT.fullmatch(host)) is not None:
        return host if named[1] else f"{host}:{port}"
    return f"[{host}]:{port}"


def spark_writers(conf: Mapping[str, str], master: str) -> int | None:
    """How many sessions Spark writes with at once; None if neither its master nor its settings say how many."""
    local = re.match(r"^local(?:\[(\d+|\*)(?:,.*)?\])?$", master)
    if local is not None:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    if "spark.cores.max" in conf:
        return int(conf["spark.cores.max"])
    if "spark.executor.instances" in conf:
        return int(conf["spark.executor.instances"]) * int(conf.get("spark.executor.cores", "1"))
    return None
