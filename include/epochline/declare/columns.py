"""Column types of targets and records, by their PostgreSQL names. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochline.declare.names import ORDER


class Carrier(enum.StrEnum):
    """COPY format of a type's values."""

    BINARY = "binary"
    """An exact encoder exists; the server converts nothing."""
    TEXT = "text"
    """The server parses the value. One such column takes the whole sink's COPY along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """One supported column type, in PostgreSQL's canonical spelling (that of ``format_type``)."""

    name: str
    carrier: Carrier
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    digits: int | None = None
    """Digits of a second that a time or timestamp keeps, if it is declared with fewer than six."""
    labels: tuple[str, ...] = ()
    """Labels of an enum; empty if they are unknown."""
    element: ColumnType | None = None
    """The type of an array's elements. An array travels as the text of a JSON array."""
    by_text: bool = False
    """Whether only PostgreSQL knows the type: its values travel as texts, and the seal lets PostgreSQL judge them."""

    @property
    def is_wide(self) -> bool:
        """Whether a ``numeric(p,s)`` has more digits than Arrow carries in 128 bits."""
        return max(self.precision or 0, self.scale or 0) > BINARY_DIGITS

    def __str__(self) -> str:
        if self.element is not None:
            return f"{self.element}[]"
        if self.name == "numeric" and self.precision is not None:
            return f"numeric({self.precision},{self.scale or 0})"
        modifier = self.length if self.digits is None else self.digits
        if modifier is not None and " with" in self.name:
            word, _, zone = self.name.partition(" ")
            return f"{word}({modifier}) {zone}"
        if modifier is not None:
            return f"{self.name}({modifier})"
        return self.name


_BINARY = {
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "text", "character varying", "bytea",
    "date", "timestamp without time zone", "timestamp with time zone", "time without time zone", "json", "jsonb",
    "numeric", "uuid", "inet", "cidr", "macaddr",
}  # fmt: skip
_TEXT = {"interval"}

BINARY_DIGITS = 38
"""Digits of a ``numeric(p,s)`` that Arrow carries in 128 bits."""

_ALIASES = {
    "bool": "boolean", "int2": "smallint", "int": "integer", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "float": "double precision", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone", "decimal": "numeric",
    "time": "time without time zone", "string": "text", "timetz": "time with time zone", "char": "character",
    "varbit": "bit varying",
}  # fmt: skip

_TIMES = {
    "timestamp without time zone", "timestamp with time zone", "time without time zone", "time with time zone",
    "interval",
}  # fmt: skip
_LENGTHS = {"character varying", "character", "bit", "bit varying"}

SUPPORTED = tuple(sorted(_BINARY | _TEXT))
"""Canonical names of every type whose values this package checks, apart from arrays and enums of an existing table."""

BY_TEXT = (
    "bit", "bit varying", "box", "character", "circle", "citext", "datemultirange", "daterange",
    "hstore", "int4multirange", "int4range", "int8multirange", "int8range", "jsonpath", "line", "lquery", "lseg",
    "ltree", "ltxtquery", "macaddr8", "money", "nummultirange", "numrange", "oid", "path", "pg_lsn", "point", "polygon",
    "time with time zone", "tsmultirange", "tsquery", "tsrange", "tstzmultirange", "tstzrange", "tsvector", "xml",
)  # fmt: skip
"""Types that a declaration may name and whose texts PostgreSQL judges. An existing table may have any other type."""

_SPELLING = re.compile(
    r"\s*([a-z0-9_ ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(with(?:out)? time zone)?\s*((?:\[\d*\]\s*)*)"
)


def parse_type(text: str) -> ColumnType:
    """Parse a type as PostgreSQL spells it: ``int8``, ``numeric(12,2)``, ``text[]``; raises ``ValueError``."""
    match = _SPELLING.fullmatch(text.lower())
    spelled = " ".join(filter(None, (match[1], match[4]))) if match else ""
    name = _ALIASES.get(spelled, spelled)
    if match is not None and match[4] and match[1] in ("timestamptz", "timetz"):
        name = ""
    if match is None or name not in {*_BINARY, *_TEXT, *BY_TEXT}:
        raise ValueError(
            f"unsupported type {text!r}; use one of: {', '.join(SUPPORTED)}; an array of one; or, as texts,"
            f" {', '.join(BY_TEXT)}. A table that exists may have any type: leave out the sink's columns, and declare"
            " the record's column as text"
        )
    first, second = (None if digits is None else int(digits) for digits in match.group(2, 3))
    kind = _scalar(text, name, first, second)
    return ColumnType(name="array", carrier=Carrier.TEXT, element=kind) if match[5] else kind


def _scalar(text: str, name: str, first: int | None, second: int | None) -> ColumnType:
    carrier, by_text = Carrier.TEXT if name in _TEXT else Carrier.BINARY, name in BY_TEXT
    if name == "numeric":
        if first is not None and not (1 <= first <= 76 and (second or 0) <= 76):
            raise ValueError(f"type {text!r}: the precision must be between 1 and 76, and the scale at most 76")
        return ColumnType(name=name, carrier=carrier, precision=first, scale=second)
    if second is not None or (first is not None and name not in _LENGTHS | _TIMES):
        raise ValueError(f"type {text!r}: {name} takes no modifier here")
    if name in ("character", "bit") and first is None:
        first = 1
    if first is None or name in _LENGTHS:
        if first == 0:
            raise ValueError(f"type {text!r}: the length must be at least 1")
        return ColumnType(name=name, carrier=carrier, length=first, by_text=by_text)
    if first > 6:
        raise ValueError(f"type {text!r}: at most 6 digits of a second")
    return ColumnType(name=name, carrier=carrier, digits=first, by_text=by_text)


def check_spark_holds(field: str, columns: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for a column that Spark cannot carry through a transform or windows."""
    for name, text in columns.items():
        kind = parse_type(text)
        if kind.precision is not None and (kind.precision > BINARY_DIGITS or (kind.scale or 0) > kind.precision):
            raise ValueError(
                f"{field}: {name} is {kind}; with a transform, numeric(p,s) has at most {BINARY_DIGITS} digits, and s"
                " is at most p. Declare numeric, which a transform gets as text"
            )


def keeps_order(kind: ColumnType, values: ColumnType) -> bool:
    """Whether a column takes all values of another type unchanged and compares them alike."""
    if kind == values or kind.element is not None or values.element is not None:
        return kind == values
    if values.name == kind.name and None not in (kind.precision, values.precision):
        scales = kind.scale or 0, values.scale or 0
        return scales[0] >= scales[1] and (kind.precision or 0) - scales[0] >= (values.precision or 0) - scales[1]
    if values.name == kind.name:
        return all(
            most is None or (least is not None and least <= most)
            for most, least in (
                (kind.precision, values.precision), (kind.length, values.length), (kind.digits, values.digits),
            )
        )  # fmt: skip
    if kind.precision is not None or kind.length is not None:
        return False
    return values.name in _NARROWER.get(kind.name, ())


_NARROWER = {
    "integer": ("smallint",), "bigint": ("smallint", "integer"), "numeric": ("smallint", "integer", "bigint"),
    "double precision": ("real",), "text": ("character varying",), "character varying": ("text",),
}  # fmt: skip

INTEGERS = frozenset({"smallint", "integer", "bigint"})
"""Types that sum exactly as integers. A measure of mode ``add`` has one of them or ``numeric``."""

TIMES = frozenset({"date", "time without time zone", "timestamp without time zone", "timestamp with time zone"})
"""Types that a number can stand for, with a unit."""

UNITS = {"days": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of each unit of such a number, which counts from 1970-01-01 in UTC or, for a time, from midnight."""


def units_by_column(unit: str | Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    """The unit of each column whose numbers stand for times; raises ``ValueError`` for another column or unit."""
    kinds = {name: parse_type(text).name for name, text in columns.items()}
    times = {name for name, kind in kinds.items() if kind in TIMES}
    units = dict.fromkeys((name for name in columns if name in times), unit) if isinstance(unit, str) else dict(unit)
    strangers = sorted(set(units) - times)
    if strangers:
        raise ValueError(f"unit: {', '.join(strangers)} is not a column of type {', '.join(sorted(TIMES))}")
    unknown = sorted({name for name in units.values() if name not in UNITS})
    if unknown or (isinstance(unit, str) and not units):
        what = f"{', '.join(unknown)} is no unit" if unknown else "there is no column of a date or a time"
        raise ValueError(f"unit: {what}; use one of {', '.join(UNITS)}, for columns of a date or a time")
    return units


_TIMESTAMP = ("long timestamp-micros", "long local-timestamp-micros")

AVRO: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "smallint": ("int", "long", "float", "double"),
    "integer": ("int", "long", "double"),
    "bigint": ("long",),
    "real": ("float", "double"),
    "double precision": ("double",),
    # The writer checks each value against the length of a fixed and the symbols of an enum: no column type has them.
    "bytea": ("bytes", "fixed"),
    "text": ("string", "enum"),
    "character varying": ("string", "enum"),
    "date": ("int date",),
    "time without time zone": ("long time-micros",),
    "timestamp with time zone": _TIMESTAMP,
    "timestamp without time zone": _TIMESTAMP[::-1],
    "uuid": ("string uuid", "string"),
}
"""Avro types that hold a column type, the one that is written first. Any other column type is written as text."""


def avro_type(kind: ColumnType) -> Any:
    """The Avro type that a column is written as, in the form of a schema."""
    if kind.name == "numeric" and kind.precision is not None:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale or 0}
    base, _, logical = AVRO.get(kind.name, ("string",))[0].partition(" ")
    return {"type": base, "logicalType": logical} if logical else base


START, END = "window_start", "window_end"
"""``timestamptz`` columns of every window's result and state: ``[window_start, window_end)``."""

STAGED_LINEAGE = {"_topic": "text", "_partition": "integer", "_offset": "bigint", "_row": "integer"}
"""Lineage of every staged row that belongs to a record; the commit adds ``_epoch``."""

LINEAGE: dict[str, str] = {**STAGED_LINEAGE, "_epoch": "bigint"}
"""Columns that tie a target row to its record and epoch."""

STAGED_PLACE = {"_part": "integer", "_seq": "bigint"}
"""Columns of every row for a topic: the Spark partition that staged the row, and the row's number within that part."""

DELETED = "_deleted"
"""Boolean column of an upsert sink's staging: true for a tombstone that deletes its key."""

DELETED_AT = "_epochline_deleted_at"
"""Column of a table of deleted keys: the time of the key's newest tombstone."""

UNAVAILABLE = "_unavailable"
"""Names of the columns whose values a record does not give: a list in parsed rows, a JSON array in staging."""

QUARANTINE_COLUMNS = {
    "topic": "text", "partition": "integer", "offset": "bigint", "record_timestamp": "timestamp with time zone",
    "key": "bytea", "value": "bytea", "headers": "text", "reason": "text",
}  # fmt: skip
"""Columns of the staged quarantine; ``headers`` is JSON text: a list of [name, base64 of the value or null]."""

_RESERVED = {
    *LINEAGE, *STAGED_PLACE, DELETED, UNAVAILABLE, "_error", "_skip", "_tombstone",
    # In staging, or while rows are made.
    "_after", "_at", "_before", "_begins", "_copy", "_counts", "_existed", "_fate", "_former", "_from", "_island",
    "_island_end", "_island_known", "_island_start", "_island_touched", "_kind", "_known", "_number", "_refused",
    "_there", "_to", "_total", "_touched", "_window",
}  # fmt: skip


def is_reserved(name: str) -> bool:
    """Whether Epochline uses the name for a column itself. Spark does not distinguish upper and lower case."""
    return name.lower() in _RESERVED or name.lower().startswith((ORDER, "_epochline"))
