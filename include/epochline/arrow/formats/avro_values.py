"""The exact values of Avro's logical types, what a column takes of them, and rows written as Avro records.

A record is read with the schema of `epochline.config.registry.exact_schema`. Its logical values are `Logical`, which
only a column that takes one converts: a decimal may have more digits than its schema says, a time may be of any year.
"""

import re
import struct
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import fastavro.read
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import civil, microseconds, only_postgres, outside_years, time_number
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.reasons import DoesNotFitError
from epochline.arrow.formats.texts import as_text
from epochline.config.registry import EXACT, LOGICAL, Registry, with_header
from epochline.declare.columns import UNITS, ColumnType, avro_type
from epochline.declare.specs import AvroSpec

_NANOSECONDS = {"millis": UNITS["ms"], "micros": UNITS["us"], "nanos": UNITS["ns"]}


class Logical(NamedTuple):
    """A value of a logical type: ``value`` is an integer or bytes, as the record has it."""

    kind: str
    value: Any
    scale: int


def _read(value: Any, schema: Any = None, _: Any = None) -> Logical:
    return Logical(schema["logicalType"].removeprefix(EXACT), value, schema.get("scale", 0))


for _type, _names in LOGICAL.items():
    fastavro.read.LOGICAL_READERS.update({f"{_type}-{EXACT}{name}": _read for name in _names})


def decimal(value: Logical) -> str:
    """A decimal as text, with each digit that its bytes hold."""
    return unscaled(value.value, value.scale)


def time(value: Logical, arrow: pa.DataType) -> int:
    """Arrow's number of a date, timestamp or time of day; raises `DoesNotFitError` if PostgreSQL has no such value."""
    return time_number(microseconds(value.value, _units(value.kind)), arrow)


@cache
def _units(kind: str) -> int:
    """Nanoseconds of a unit of a logical type."""
    return UNITS["days"] if kind == "date" else _NANOSECONDS[kind.rpartition("-")[2]]


def text(value: Logical) -> str:
    """A ``uuid`` as text, or a ``duration`` in ISO 8601; raises `DoesNotFitError` for another logical type."""
    if value.kind == "uuid":
        return str(UUID(bytes=value.value))
    if value.kind != "duration":
        raise DoesNotFitError("not a text")
    months, days, millis = struct.unpack("<III", value.value)
    return f"P{months}M{days}DT{millis // 1000}.{millis % 1000:03d}S"


def in_document(value: Logical) -> str:
    """The value as a text in a JSON document; times in ISO 8601, with a sign before a year of more than four digits."""
    if value.kind == "decimal":
        return decimal(value)
    if value.kind in ("duration", "uuid"):
        return text(value)
    if value.kind == "date":
        return _date(value.value)
    nanos = value.value * _units(value.kind)
    if value.kind.startswith("time-"):
        if not 0 <= nanos <= UNITS["days"]:
            raise DoesNotFitError("a time that is not within a day")
        return _clock(nanos)
    days, rest = divmod(nanos, UNITS["days"])
    return f"{_date(days)}T{_clock(rest)}{'' if value.kind.startswith('local-') else '+00:00'}"


def _date(days: int) -> str:
    year, month, day_of_month = civil(days)
    sign = "" if 0 <= year <= 9999 else "-" if year < 0 else "+"
    return f"{sign}{abs(year):04d}-{month:02d}-{day_of_month:02d}"


def _clock(nanos: int) -> str:
    seconds, rest = divmod(nanos, UNITS["s"])
    fraction = f".{rest:09d}".removesuffix("000") if rest else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def is_recursive(schema: Any) -> bool:
    """Whether a record of a schema that fastavro parsed may contain itself, so that a value may be of any depth."""
    return _recurs(schema, schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}, frozenset())


def _recurs(schema: Any, named: Mapping[str, Any], inside: frozenset[str]) -> bool:
    if isinstance(schema, list):
        return any(_recurs(branch, named, inside) for branch in schema)
    if isinstance(schema, str):
        return schema in inside or (schema in named and _recurs(named[schema], named, inside))
    if not isinstance(schema, dict):
        return False
    inside = inside | {schema["name"]} if "name" in schema else inside
    parts = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
    inner = schema.get("type")
    return any(_recurs(part, named, inside) for part in ([*parts, inner] if isinstance(inner, dict | list) else parts))


class AvroWriter:
    """Writes rows as Avro records of one schema, which it registers first. ``topic`` is the default name of both."""

    def __init__(self, spec: AvroSpec, kinds: Mapping[str, ColumnType], topic: str, registry: Registry) -> None:
        self._kinds = {name: kinds[name] for name in spec.columns}
        self._subject = spec.subject or f"{topic}-value"
        self._schema = dict(spec.schema) if spec.schema else derived_schema(self._kinds, topic)
        self._registry = registry
        self._parsed = fastavro.parse_schema(self._schema)

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One value per row, and the reason for each row that does not fit. Raises as `Registry.register`."""
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


def derived_schema(columns: Mapping[str, ColumnType], topic: str) -> dict[str, Any]:
    """The Avro schema of columns: a record named after the topic, with nullable fields."""
    fields = [{"name": name, "type": ["null", avro_type(kind)], "default": None} for name, kind in columns.items()]
    name = re.sub("[^A-Za-z0-9_]", "_", topic)
    return {"type": "record", "name": name if not name[0].isdigit() else f"_{name}", "fields": fields}
