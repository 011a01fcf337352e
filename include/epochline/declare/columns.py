"""Column types of targets and records, by their PostgreSQL names. Pure: one place says which types there are."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Carrier(enum.StrEnum):
    """How values of a type travel into staging."""

    BINARY = "binary"
    """COPY in binary: an exact encoder exists, the server converts nothing."""
    TEXT = "text"
    """COPY in text: the server parses the value, at about twice the cost for the whole sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """One supported column type, in PostgreSQL's canonical spelling (that of ``format_type``)."""

    name: str
    carrier: Carrier
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    labels: tuple[str, ...] = ()
    """Of an enum; empty where they are not known."""

    def __str__(self) -> str:
        if self.name == "numeric" and self.precision is not None:
            return f"numeric({self.precision},{self.scale or 0})"
        if self.length is not None:
            return f"{self.name}({self.length})"
        return self.name


_BINARY = {
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "text", "character varying", "bytea",
    "date", "timestamp without time zone", "timestamp with time zone",
}  # fmt: skip
_TEXT = {"numeric", "json", "jsonb", "uuid", "inet", "cidr", "macaddr", "time without time zone", "interval"}

_ALIASES = {
    "bool": "boolean", "int2": "smallint", "int": "integer", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "float": "double precision", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone", "decimal": "numeric",
    "time": "time without time zone", "string": "text",
}  # fmt: skip

SUPPORTED = tuple(sorted(_BINARY | _TEXT))
"""Canonical names of every type a column can have, apart from enums of an existing table (carried as text)."""

_SPELLING = re.compile(r"^\s*([a-z0-9 ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*$")


def parse_type(text: str, *, enums: frozenset[str] = frozenset()) -> ColumnType:
    """Read a type as PostgreSQL spells it, aliases included.

    Args:
        text: ``bigint``, ``int8``, ``varchar(20)``, ``numeric(12,2)``, …
        enums: names of enum types that exist in the target database; they are carried as text.

    Raises:
        ValueError: the type cannot be carried; the message lists those that can.
    """
    if text in enums:
        return ColumnType(name=text, carrier=Carrier.TEXT)
    match = _SPELLING.match(text.lower())
    name = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or name not in _BINARY | _TEXT:
        raise ValueError(f"type {text!r} cannot be carried; use one of: {', '.join(SUPPORTED)}")
    first, second = match[2], match[3]
    carrier = Carrier.BINARY if name in _BINARY else Carrier.TEXT
    if name == "numeric":
        if first is not None and not 1 <= int(first) <= 76:
            raise ValueError(f"type {text!r}: the precision must be between 1 and 76")
        return ColumnType(
            name=name,
            carrier=carrier,
            precision=None if first is None else int(first),
            scale=None if second is None else int(second),
        )
    if name == "character varying" and first is not None and second is None:
        return ColumnType(name=name, carrier=carrier, length=int(first))
    if first is not None:
        raise ValueError(f"type {text!r}: {name} takes no modifier here")
    return ColumnType(name=name, carrier=carrier)


INTEGERS = frozenset({"smallint", "integer", "bigint"})
"""Types that sum exactly as integers; with ``numeric`` they are what a measure of mode ``add`` may be."""

START, END = "window_start", "window_end"
"""Columns of every window's result and of its state: ``timestamptz``, ``[window_start, window_end)``."""

LINEAGE: dict[str, str] = {
    "_topic": "text",
    "_partition": "integer",
    "_offset": "bigint",
    "_row": "integer",
    "_epoch": "bigint",
}
"""Columns that tie a target row to its record and epoch (protocol, "What a sink mode means")."""


STAGED_LINEAGE = {name: LINEAGE[name] for name in ("_topic", "_partition", "_offset", "_row")}
"""What every staged row that belongs to a record carries; ``_epoch`` is added by the commit."""

STAGED_PLACE = {"_part": "integer", "_seq": "bigint"}
"""What every row for a topic carries: the number of the Spark partition that staged it, and of the row within its part.

Rows leave an outbox in an order that is written down: where a table keeps its rows says nothing of it.
"""

DELETED = "_deleted"
"""Boolean column of an upsert sink's staging: the row is a tombstone that deletes its key."""

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
"""Staged quarantine; ``headers`` is JSON text: a list of [name, base64 of the value or null]."""
