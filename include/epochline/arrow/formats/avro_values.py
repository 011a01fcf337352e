"""The exact values of Avro's logical types, and what a column takes of them.

A record is read with the schema of `epochline.declare.avro_logical.exact_schema`. Its logical values are `Logical`, the
plain value with its type, and only a column that takes one converts it. Nothing is rounded: a decimal may have more
digits than its schema says, and a time may be of any year that PostgreSQL has.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import fastavro.read

from epochline.arrow.cast.calendar import DAY, civil, day_number, tick_number
from epochline.arrow.cast.checks import DoesNotFitError
from epochline.declare.avro_logical import EXACT, LOGICAL

_MOST_BYTES = 65_536
"""A longer unscaled number has more digits than PostgreSQL's ``numeric``."""

_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


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
    """A decimal as text, with each digit that its bytes hold.

    Raises:
        DoesNotFitError: it has more digits than any ``numeric``.
    """
    if len(value.value) > _MOST_BYTES:
        raise DoesNotFitError("out of range")
    sign, digits, _ = Decimal(int.from_bytes(value.value, "big", signed=True)).as_tuple()
    return format(Decimal((sign, digits, -value.scale)), "f")


def day(value: Logical) -> int:
    """Arrow's number of a date.

    Raises:
        DoesNotFitError: PostgreSQL has no such date.
    """
    return day_number(value.value)


def moment(value: Logical) -> int:
    """Arrow's number of a timestamp, local or not.

    Raises:
        DoesNotFitError: PostgreSQL has no such timestamp, or none with so many digits of a second.
    """
    return tick_number(_micros(value))


def clock(value: Logical) -> int:
    """Microseconds of a time of day, up to ``24:00:00``.

    Raises:
        DoesNotFitError: it is not within a day.
    """
    ticks = _micros(value)
    if not 0 <= ticks <= DAY:
        raise DoesNotFitError("not within a day")
    return ticks


def _micros(value: Logical) -> int:
    unit = _PER_SECOND[value.kind.rpartition("-")[2]]
    micros, rest = divmod(value.value * 1_000_000, unit)
    if rest:
        raise DoesNotFitError("more than six digits of a second")
    return int(micros)


def text(value: Logical) -> str:
    """A ``uuid`` as text, or a ``duration`` in ISO 8601.

    Raises:
        DoesNotFitError: another logical type.
    """
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
    unit = value.kind.rpartition("-")[2]
    days, ticks = divmod(value.value, 86_400 * _PER_SECOND[unit])
    spelled = _clock(ticks, unit)
    if value.kind.startswith("time-"):
        return _clock(value.value, unit)
    return f"{_date(days)}T{spelled}{'' if value.kind.startswith('local-') else '+00:00'}"


def _date(days: int) -> str:
    year, month, day_of_month = civil(days)
    sign = "" if 0 <= year <= 9999 else "-" if year < 0 else "+"
    return f"{sign}{abs(year):04d}-{month:02d}-{day_of_month:02d}"


def _clock(ticks: int, unit: str) -> str:
    seconds, rest = divmod(ticks, _PER_SECOND[unit])
    digits = f"{rest:0{len(str(_PER_SECOND[unit])) - 1}d}"
    fraction = f".{digits.ljust(6, '0')}" if rest else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
