"""Schema registries: their connections and their Avro schemas. Each process caches the answers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from epochline.declare.specs import AvroSpec, OutboxSpec
from epochline.errors import ConfigurationError, SinkError, SourceAuthenticationError, SourceUnavailableError, one_line

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from epochline.config.connections import Connection
    from epochline.declare.pipeline import Pipeline

_HEADER = struct.Struct(">bI")

_TIMEOUT, _RETRIES = 30, 2
_UNKNOWN_SCHEMA = 40403
_OVERLOADED = (408, 429)


class UndecodableError(ValueError):
    """A record's bytes do not match a schema of the registry; the message gives the reason without any value."""


def registry_settings(at: Connection) -> dict[str, str]:
    """``url``, ``login`` and ``password`` of a registry, whose host may be a URL; raises `ConfigurationError`."""
    strangers = sorted(set(at.extra) - {"path"})
    if strangers:
        raise ConfigurationError(f"{at.where}: {', '.join(strangers)} is not supported; supported: path.")
    url = at.host if "://" in at.host else f"{at.schema or 'http'}://{at.host}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigurationError(f"{at.where} names no registry: give the host, or http://host as the host.")
    if at.port is not None and parts.port is None:
        url = parts._replace(netloc=f"{parts.netloc}:{at.port}").geturl()
    path = at.extra.get("path", "").strip("/")
    return {"url": url.rstrip("/") + (f"/{path}" if path else ""), "login": at.login, "password": at.password}


@dataclass(frozen=True, slots=True)
class Registries:
    """Settings of registries by connection id, pickled for executors. ``repr`` hides the values."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def install(self) -> None:
        """Make the registries available to `registry` in this process."""
        for connection, settings in self.settings.items():
            if connection not in _known or _known[connection].settings != settings:
                _known[connection] = Registry(connection, settings)


def registry(connection: str) -> Registry:
    """The registry of a connection; raises `ConfigurationError` if this process has no settings for it."""
    if connection not in _known:
        raise ConfigurationError(
            f"schema registry {connection!r}: this process has no settings for it. If Spark's driver reads its own"
            f' credentials file, add {{"registries": {{"{connection}": {{"url": "http://host:8081"}}}}}} to it.'
        )
    return _known[connection]


def registry_connections(pipeline: Pipeline) -> tuple[str, ...]:
    """Ids of the connections of the registries that a pipeline's formats name."""
    parses = [spec.parse for spec in pipeline.specs.values()]
    formats = [*parses, *(sink.topic.value for sink in pipeline.spec.sinks if isinstance(sink, OutboxSpec))]
    return tuple(sorted({avro.registry for avro in formats if isinstance(avro, AvroSpec)}))


class Registry:
    """One registry, with Confluent's API. ``settings`` are its ``url``, ``login`` and ``password``."""

    def __init__(self, connection: str, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self._name = f"schema registry {connection!r}"
        self._client: SchemaRegistryClient | None = None
        self._schemas: dict[int, Any] = {}

    def schema(self, schema_id: int) -> Any:
        """The parsed Avro schema of an id, in the form of `exact_schema`.

        Raises:
            UndecodableError: the registry has no Avro schema under this id.
            SourceUnavailableError: the registry does not answer; a repeat helps.
            SourceAuthenticationError, ConfigurationError: it rejects the login, or is no registry.
        """
        if schema_id not in self._schemas:
            from confluent_kafka.schema_registry import SchemaRegistryError

            with self._asking():
                try:
                    held = self._connected().get_schema(schema_id)
                except SchemaRegistryError as error:
                    if error.error_code != _UNKNOWN_SCHEMA:
                        raise
                    raise UndecodableError(f"the registry has no schema {schema_id}") from None
                self._schemas[schema_id] = self._parsed(schema_id, held)
        return self._schemas[schema_id]

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """Register a schema and return its id. Raises `SinkError` if the registry refuses it, else as `schema`."""
        from confluent_kafka.schema_registry import Schema, SchemaRegistryError

        with self._asking():
            try:
                # The client keeps the ids of schemas that it has registered.
                return self._connected().register_schema(subject, Schema(json.dumps(schema), "AVRO"))
            except SchemaRegistryError as error:
                if error.http_status_code not in (409, 422):
                    raise
                raise SinkError(
                    f"{self._name} refuses the schema of subject {subject!r} ({one_line(error)}). Nothing was sent;"
                    " declare columns that are compatible, or another subject"
                ) from None

    def _parsed(self, schema_id: int, held: Schema) -> Any:
        from fastavro.schema import SchemaParseException, parse_schema

        if (held.schema_type or "AVRO") != "AVRO":
            raise UndecodableError(f"schema {schema_id} is {held.schema_type}, not Avro")
        named: dict[str, Any] = {}
        try:
            self._add_references(held, named)
            return parse_schema(exact_schema(json.loads(held.schema_str or "")), named_schemas=named)
        except (SchemaParseException, ValueError, RecursionError) as error:
            raise UndecodableError(f"schema {schema_id} cannot be read ({type(error).__name__})") from None

    def _add_references(self, schema: Schema, named: dict[str, Any]) -> None:
        from fastavro.schema import parse_schema

        for reference in schema.references or ():
            if reference.name is not None and reference.name not in named:
                client, subject = self._connected(), reference.subject or ""
                referred = client.get_version(subject, reference.version or "latest").schema
                self._add_references(referred, named)
                parse_schema(exact_schema(json.loads(referred.schema_str or "")), named_schemas=named)

    def _connected(self) -> SchemaRegistryClient:
        if self._client is None:
            from confluent_kafka.schema_registry import SchemaRegistryClient

            conf: dict[str, Any] = {"url": self.settings["url"], "timeout": _TIMEOUT, "max.retries": _RETRIES}
            if self.settings.get("login"):
                conf["basic.auth.user.info"] = f"{self.settings['login']}:{self.settings.get('password', '')}"
            self._client = SchemaRegistryClient(conf)
        return self._client

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the client's errors into ours: registry down, login rejected, or not a registry."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        # The client uses one of two compatible libraries; only this module says which.
        from confluent_kafka.schema_registry.common._httpx_compat import httpx

        try:
            yield
        except UndecodableError:
            raise
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(f"{self._name}: the server at its address is not a registry") from None
        except httpx.HTTPError as error:
            raise SourceUnavailableError(f"{self._name} does not answer ({type(error).__name__})") from None
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status >= 500 or status in _OVERLOADED:
                raise SourceUnavailableError(f"{self._name} cannot answer (HTTP {status})") from None
            if status in (401, 403):
                raise SourceAuthenticationError(
                    f"{self._name} rejects the login (HTTP {status}). Correct the connection's login and password"
                ) from None
            raise ConfigurationError(
                f"{self._name} answers HTTP {status}, unlike a registry. Check the path of its API in the connection's"
                " extra."
            ) from None


HEADER_BYTES = _HEADER.size


def with_header(schema_id: int, body: bytes) -> bytes:
    """Prefix a value's body with the header: a zero byte and the schema's id."""
    return _HEADER.pack(0, schema_id) + body


def split_header(value: bytes) -> int:
    """The schema's id of a value, whose body begins after `HEADER_BYTES`; raises `UndecodableError` without one."""
    if len(value) < HEADER_BYTES:
        raise UndecodableError("too short for Avro with a schema id")
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != 0:
        raise UndecodableError("not Avro with a schema id: the first byte is not 0")
    return int(schema_id)


_known: dict[str, Registry] = {}

EXACT = "epochline-"
"""Prefix of the names that a reader of `epochline.arrow.formats.avro_values` has."""

LOGICAL: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {"time-micros"}
        | {f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")}
    ),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "duration", "uuid"}),
}
"""Logical types by their Avro type. ``uuid`` of a string is a text, and any other one is ignored."""

_SIZES = {"duration": 12, "uuid": 16}


def exact_schema(schema: Any) -> Any:
    """A schema, as JSON gives it, whose logical types are renamed with `EXACT` or left out."""
    if isinstance(schema, list):
        return [exact_schema(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    exact = {key: value for key, value in schema.items() if key != "logicalType"}
    inner = schema.get("type")
    if inner in ("record", "error") and isinstance(schema.get("fields"), list):
        exact["fields"] = [
            {**field, "type": exact_schema(field.get("type"))} if isinstance(field, dict) else field
            for field in schema["fields"]
        ]
    elif inner in ("array", "map"):
        part = "items" if inner == "array" else "values"
        exact[part] = exact_schema(schema.get(part))
    elif isinstance(inner, dict | list):
        exact["type"] = exact_schema(inner)
    elif _is_valid(schema):
        exact["logicalType"] = f"{EXACT}{schema['logicalType']}"
    return exact


def _is_valid(schema: Mapping[str, Any]) -> bool:
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or logical not in LOGICAL.get(str(schema.get("type")), ()):
        return False
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        return type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0
    return schema.get("size") == _SIZES.get(logical)
