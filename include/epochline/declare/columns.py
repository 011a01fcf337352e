"""Column types of targets and records, by their PostgreSQL names. Pure."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Carrier(enum.StrEnum):
    """COPY format of a type's values."""

    BINARY = "binary"
    """An exact encoder exists; the server converts nothing."""
    TEXT = "text"
    """The server parses the value. One such column takes the whole sink's COPY along, which costs twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """One supported column type, in PostgreSQL's canonical spelling (that of ``format_type``)."""

    name: str
    carrier: Carrier
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    labels: tuple[str, ...] = ()
    """Labels of an enum; empty if they are unknown."""

    def __str__(self) -> str:
        if self.name == "numeric" and self.precision is not None:
            return f"numeric({self.precision},{self.scale or 0})"
        if self.length is not None:
            return f"{self.name}({self.length})"
        return self.name


_BINARY = {
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "text", "character varying", "bytea",
    "date", "timestamp without time zone", "timestamp with time zone", "time without time zone", "json", "jsonb",
}  # fmt: skip
_TEXT = {"numeric", "uuid", "inet", "cidr", "macaddr", "interval"}

BINARY_DIGITS = 38
"""Digits of a ``numeric(p,s)`` that has an exact encoder. Without a precision, each value has its own scale."""

_ALIASES = {
    "bool": "boolean", "int2": "smallint", "int": "integer", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "float": "double precision", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone", "decimal": "numeric",
    "time": "time without time zone", "string": "text",
}  # fmt: skip

SUPPORTED = tuple(sorted(_BINARY | _TEXT))
"""Canonical names of every supported type, apart from enums of an existing table."""

_SPELLING = re.compile(r"^\s*([a-z0-9 ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*$")


def parse_type(text: str, *, enums: frozenset[str] = frozenset()) -> ColumnType:
    """Parse a type as PostgreSQL spells it, aliases included.

    Args:
        text: ``bigint``, ``int8``, ``varchar(20)``, ``numeric(12,2)``, …
        enums: names of enum types that exist in the target database.

    Raises:
        ValueError: the type is unsupported; the message lists the supported ones.
    """
    if text in enums:
        return enum_type(text)
    match = _SPELLING.match(text.lower())
    name = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or name not in _BINARY | _TEXT:
        raise ValueError(f"unsupported type {text!r}; use one of: {', '.join(SUPPORTED)}")
    first, second = match[2], match[3]
    carrier = Carrier.BINARY if name in _BINARY else Carrier.TEXT
    if name == "numeric":
        if first is not None and not 1 <= int(first) <= 76:
            raise ValueError(f"type {text!r}: the precision must be between 1 and 76")
        return ColumnType(
            name=name,
            carrier=Carrier.BINARY if first is not None and int(first) <= BINARY_DIGITS else Carrier.TEXT,
            precision=None if first is None else int(first),
            scale=None if second is None else int(second),
        )
    if name == "character varying" and first is not None and second is None:
        return ColumnType(name=name, carrier=carrier, length=int(first))
    if first is not None:
        raise ValueError(f"type {text!r}: {name} takes no modifier here")
    return ColumnType(name=name, carrier=carrier)


def enum_type(name: str) -> ColumnType:
    """An enum of the target. The binary form of a label is its text."""
    return ColumnType(name=name, carrier=Carrier.BINARY)


INTEGERS = frozenset({"smallint", "integer", "bigint"})
"""Types that sum exactly as integers. A measure of mode ``add`` has one of them or ``numeric``."""

START, END = "window_start", "window_end"
"""``timestamptz`` columns of every window's result and state: ``[window_start, window_end)``."""

LINEAGE: dict[str, str] = {
    "_topic": "text",
    "_partition": "integer",
    "_offset": "bigint",
    "_row": "integer",
    "_epoch": "bigint",
}
"""Columns that tie a target row to its record and epoch."""


STAGED_LINEAGE = {name: LINEAGE[name] for name in ("_topic", "_partition", "_offset", "_row")}
"""Lineage of every staged row that belongs to a record; the commit adds ``_epoch``."""

STAGED_PLACE = {"_part": "integer", "_seq": "bigint"}
"""Columns of every row for a topic: the Spark partition that staged the row, and the row's number within that part.

They record the order of an outbox, because the physical order of a table's rows is undefined.
"""

DELETED = "_deleted"
"""Boolean column of an upsert sink's staging: true for a tombstone that deletes its key."""

UNAVAILABLE = "_unavailable"
"""Names of the columns whose values a record does not give: a list in parsed rows, a JSON array in staging."""

QUARANTINE_COLUMNS = {
    "topic": "text",
    "partition": "integer",
    "offset": "bigint",
    "record_timestamp": "timestamp with time zone",
    "key": "bytea",
    "value": "bytea",
    "headers": "text",
    "reason": "text",
}
"""Columns of the staged quarantine; ``headers`` is JSON text: a list of [name, base64 of the value or null]."""
