"""The exact values of Avro's logical types, and what a column takes of them. Nothing is rounded.

A record is read with the schema of `epochline.config.registry.exact_schema`. Its logical values are `Logical`, which
only a column that takes one converts: a decimal may have more digits than its schema says, a time may be of any year.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import fastavro.read
import pyarrow as pa

from epochline.arrow.cast.calendar import civil, microseconds, time_number
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.reasons import DoesNotFitError
from epochline.config.registry import EXACT, LOGICAL
from epochline.declare.columns import UNITS

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
    return time_number(microseconds(value.value, _units(value)), arrow)


def _units(value: Logical) -> int:
    return UNITS["days"] if value.kind == "date" else _NANOSECONDS[value.kind.rpartition("-")[2]]


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
    nanos = value.value * _units(value)
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
        return any(_recurs(one, named, inside) for one in schema)
    if isinstance(schema, str):
        return schema in inside or (schema in named and _recurs(named[schema], named, inside))
    if not isinstance(schema, dict):
        return False
    inside = inside | {schema["name"]} if "name" in schema else inside
    parts = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
    inner = schema.get("type")
    return any(_recurs(one, named, inside) for one in ([*parts, inner] if isinstance(inner, dict | list) else parts))
