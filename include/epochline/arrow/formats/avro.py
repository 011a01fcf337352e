"""Avro with a schema registry: read records of any schema, and write records of one schema."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.arrays import planted
from epochline.arrow.cast.calendar import only_postgres, outside_years
from epochline.arrow.cast.casting import Cast, cast_elements
from epochline.arrow.cast.checks import DoesNotFitError
from epochline.arrow.cast.jsontext import MAX_DEPTH
from epochline.arrow.cast.time_texts import read_moment
from epochline.arrow.cast.types import arrow_type
from epochline.arrow.formats import avro_values
from epochline.arrow.formats.avro_values import Logical
from epochline.arrow.formats.postgres_text import as_text
from epochline.config.registry import HEADER_BYTES, Registry, UndecodableError, split_header, with_header
from epochline.declare.columns import INTEGERS, ColumnType
from epochline.declare.specs import AvroSpec


class AvroReader:
    """Reads records of any schemas into columns, which `cast_column` then casts.

    Args:
        columns: the fields to read, with their types.
        registry: holds the schemas.
    """

    def __init__(self, columns: Mapping[str, ColumnType], registry: Registry) -> None:
        self._fields = [(name, kind, *_reader_of(kind)) for name, kind in columns.items()]
        self._registry = registry
        self._unknown: dict[int, str] = {}

    def read(self, values: pa.Array, keys: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns, and the reason for each row that is not such a record.

        The columns of a record without a value come from its key.

        Raises:
            SourceUnavailableError: the registry does not answer. A retry may help.
            SourceAuthenticationError: the registry refuses the login.
            ConfigurationError: the server is not a registry.
        """
        columns: list[list[Any]] = [[] for _ in self._fields]
        problems: dict[int, str] = {}
        nothing = [None] * len(self._fields)
        for row, (value, key) in enumerate(zip(values.to_pylist(), keys.to_pylist(), strict=True)):
            try:
                fields = self._read_key(key) if value is None else self._read_fields(self._decode(value))
            except (UndecodableError, DoesNotFitError) as error:
                problems[row] = str(error)
                fields = nothing
            for column, field in zip(columns, fields, strict=True):
                column.append(field)
        arrays: list[pa.Array] = []
        for column, (name, kind, carried, read) in zip(columns, self._fields, strict=True):
            if kind.element is None:
                arrays.append(_carried(column, carried, kind))
                continue
            cast = _cast_lists(name, column, kind.element, carried, read)
            arrays.append(cast.array)
            problems = cast.problems | problems
        return arrays, problems

    def _read_key(self, key: bytes | None) -> list[Any]:
        """The fields of a key; all None if it is not Avro."""
        try:
            return self._read_fields(self._decode(key or b""))
        except UndecodableError:
            return [None] * len(self._fields)

    def _decode(self, value: bytes) -> dict[str, Any]:
        schema_id = split_header(value)
        if schema_id in self._unknown:
            raise UndecodableError(self._unknown[schema_id])
        try:
            schema = self._registry.schema(schema_id)
        except UndecodableError as error:
            # Only this reader keeps it: the schema may be registered later.
            self._unknown[schema_id] = str(error)
            raise
        body = BytesIO(value)
        body.seek(HEADER_BYTES)
        try:
            record = fastavro.schemaless_reader(body, schema, None)
        except Exception as error:  # fastavro raises many different errors on invalid bytes
            raise UndecodableError(f"not Avro of schema {schema_id} ({type(error).__name__})") from None
        if body.tell() != len(value):
            raise UndecodableError(f"not Avro of schema {schema_id}: {len(value) - body.tell()} bytes are left over")
        if not isinstance(record, dict):
            raise UndecodableError(f"schema {schema_id} is not of a record")
        return record

    def _read_fields(self, record: dict[str, Any]) -> list[Any]:
        fields = []
        for name, kind, _, read in self._fields:
            value = record.get(name)
            try:
                if kind.element is not None and not isinstance(value, list | None):
                    raise DoesNotFitError("not an array")
                fields.append(value if value is None or kind.element is not None else read(value))
            except DoesNotFitError as error:
                given = value.kind if isinstance(value, Logical) else type(value).__name__
                raise DoesNotFitError(f"{name}: {given} of Avro does not fit {kind} ({error})") from None
        return fields


_Read = Callable[[Any], Any]
_MOMENT = pa.timestamp("us", "UTC")


def _carried(values: list[Any], carried: pa.DataType, kind: ColumnType) -> pa.Array:
    """Values that a reader gave, as the type that the cast begins with."""
    array, target = pa.array(values, carried), arrow_type(kind)
    return array.cast(target) if pa.types.is_temporal(target) else array


def _cast_lists(name: str, rows: list[Any], element: ColumnType, carried: pa.DataType, read: _Read) -> Cast:
    """Arrays of Avro as a cast column."""
    trees: list[Any] = []
    elements: list[Any] = []
    problems: dict[int, str] = {}
    for row, value in enumerate(rows):
        try:
            trees.append(None if value is None else planted(value, elements, element, read))
        except DoesNotFitError as error:
            problems[row] = f"{name}: an element of Avro does not fit {element} ({error})"
            trees.append(None)
    cast = cast_elements(name, trees, _carried(elements, carried, element), element)
    return Cast(cast.array, cast.problems | problems)


def _reader_of(kind: ColumnType) -> tuple[pa.DataType, _Read]:
    """The Arrow type that carries a field's values to the cast, and the function that checks and converts them.

    Of an array, those of its elements.
    """
    if kind.element is not None:
        return _reader_of(kind.element)
    if kind.name in INTEGERS:
        return pa.int64(), _integer
    if kind.name in _READERS:
        return _READERS[kind.name]
    return pa.string(), _text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DoesNotFitError("not a boolean")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DoesNotFitError("not an integer")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DoesNotFitError("not a number")
    number = float(value)
    if isinstance(value, int) and int(number) != value:
        raise DoesNotFitError("more digits than a floating-point number keeps")
    return number


def _numeral(value: Any) -> str:
    if isinstance(value, Logical) and value.kind == "decimal":
        return avro_values.decimal(value)
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise DoesNotFitError("not a number")
    return str(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, Logical) and value.kind == "duration":
        return bytes(value.value)
    if not isinstance(value, bytes):
        raise DoesNotFitError("not bytes")
    return value


def _text(value: Any) -> str:
    if isinstance(value, Logical):
        return avro_values.text(value)
    if not isinstance(value, str):
        raise DoesNotFitError("not a text")
    return value


def _time(value: Any, *, kinds: tuple[str, ...], arrow: pa.DataType, what: str) -> int:
    """Arrow's number of a logical date or time. A timestamp may also be a text, with an offset if the type has one."""
    if isinstance(value, str) and pa.types.is_timestamp(arrow):
        return read_moment(value, has_zone=arrow.equals(_MOMENT))
    if not isinstance(value, Logical) or not value.kind.startswith(kinds):
        raise DoesNotFitError(f"not a {what}")
    return avro_values.time(value, arrow)


def _times(arrow: pa.DataType, what: str, *kinds: str) -> tuple[pa.DataType, _Read]:
    carried = pa.int32() if pa.types.is_date(arrow) else pa.int64()
    return carried, partial(_time, kinds=kinds, arrow=arrow, what=what)


def _document(value: Any) -> str:
    """A text already is JSON, as this module writes it; other values are converted."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(_plain(value, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise DoesNotFitError("not JSON") from error


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise DoesNotFitError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Logical):
        return avro_values.in_document(value)
    if isinstance(value, dict):
        return {name: _plain(member, depth + 1) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(element, depth + 1) for element in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


_READERS: dict[str, tuple[pa.DataType, _Read]] = {
    "boolean": (pa.bool_(), _boolean),
    "real": (pa.float64(), _number),
    "double precision": (pa.float64(), _number),
    "numeric": (pa.string(), _numeral),
    "bytea": (pa.binary(), _bytes),
    "date": _times(pa.date32(), "date", "date"),
    "time without time zone": _times(pa.time64("us"), "time of day", "time-"),
    "timestamp with time zone": _times(_MOMENT, "timestamp", "timestamp-", "local-timestamp-"),
    "timestamp without time zone": _times(pa.timestamp("us"), "timestamp", "timestamp-", "local-timestamp-"),
    "json": (pa.string(), _document),
    "jsonb": (pa.string(), _document),
}
"""Dates and times are numbers of `epochline.arrow.cast.calendar`."""


class AvroWriter:
    """Writes rows as Avro records of one schema, which it registers first.

    Args:
        spec: the columns, and optionally subject and schema.
        kinds: the columns' types.
        topic: the default name of the subject and the record.
        registry: stores the schema.
    """

    def __init__(self, spec: AvroSpec, kinds: Mapping[str, ColumnType], topic: str, registry: Registry) -> None:
        self._kinds = {name: kinds[name] for name in spec.columns}
        self._subject = spec.subject or f"{topic}-value"
        self._schema = dict(spec.schema) if spec.schema else derived_schema(self._kinds, topic)
        self._registry = registry
        self._parsed = fastavro.parse_schema(self._schema)

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One value per row, and the reason for each row that does not fit the schema.

        Raises:
            SourceUnavailableError: the registry does not answer. A retry may help.
            SinkError: the registry refuses the schema.
        """
        if not rows.num_rows:
            return pa.array([], pa.binary()), {}
        schema_id = self._registry.register(self._subject, self._schema)
        problems: dict[int, str] = {}
        columns = [self._values(rows.column(name), name, kind, problems) for name, kind in self._kinds.items()]
        values: list[bytes | None] = []
        for row, record in enumerate(zip(*columns, strict=True)):
            body = BytesIO()
            try:
                fastavro.schemaless_writer(body, self._parsed, dict(zip(self._kinds, record, strict=True)))
            except Exception as error:  # any error, because the user wrote the schema; its text would show values
                problems.setdefault(row, f"does not fit the Avro schema of {self._subject} ({type(error).__name__})")
            values.append(None if row in problems else with_header(schema_id, body.getvalue()))
        return pa.array(values, pa.binary()), problems

    def _values(self, column: pa.Array, name: str, kind: ColumnType, problems: dict[int, str]) -> list[Any]:
        if pa.types.is_temporal(column.type):
            is_time = pa.types.is_time(column.type)
            outside = only_postgres(column) if is_time else outside_years(column)
            limit = "times before 24:00:00" if is_time else "the years 1 to 9999"
            for row in outside:
                problems.setdefault(row, f"{name}: Avro is only written for {limit}")
            if outside:
                left_out = pa.array([row in problems for row in range(len(column))])
                column = pc.if_else(left_out, pa.scalar(None, column.type), column)
            if pa.types.is_timestamp(column.type):
                # fastavro reads a time without a zone as local time of this machine.
                column = column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        elif pa.types.is_string(column.type):
            column = as_text(column, kind)
        return list(column.to_pylist())


_AVRO: dict[str, Any] = {
    "boolean": "boolean",
    "smallint": "int",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "double precision": "double",
    "bytea": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time without time zone": {"type": "long", "logicalType": "time-micros"},
    "timestamp with time zone": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp without time zone": {"type": "long", "logicalType": "local-timestamp-micros"},
    "uuid": {"type": "string", "logicalType": "uuid"},
}


def derived_schema(columns: Mapping[str, ColumnType], topic: str) -> dict[str, Any]:
    """The Avro schema of columns: a record named after the topic, with nullable fields."""
    fields = [{"name": name, "type": ["null", _avro_type(kind)], "default": None} for name, kind in columns.items()]
    name = re.sub("[^A-Za-z0-9_]", "_", topic)
    return {"type": "record", "name": name if not name[0].isdigit() else f"_{name}", "fields": fields}


def _avro_type(kind: ColumnType) -> Any:
    if kind.name == "numeric" and kind.precision is not None:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale or 0}
    return _AVRO.get(kind.name, "string")
