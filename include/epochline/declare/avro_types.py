"""The Avro types that hold every value of a column type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochline.declare.columns import INTEGERS, ColumnType

_TIMESTAMP = ("long timestamp-micros", "long local-timestamp-micros")

_HOLDING: dict[str, tuple[str, ...]] = {
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
    "uuid": ("string", "string uuid"),
}
"""Avro types by column type. Any other column type is written as text. Messages propose the first Avro type."""

_LOGICAL = {
    "int date", "int time-millis", "long time-micros", "string uuid", "bytes decimal", "fixed decimal",
    *(f"long {local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
}  # fmt: skip
"""Known logical types. Any other is ignored, as the Avro specification demands."""


def unheld(avro: Any, kind: ColumnType, named: Mapping[str, Any]) -> str | None:
    """Find the first Avro type of a field, or of its union, that does not hold every value of a column.

    Args:
        avro: the field's type, as fastavro parsed it.
        kind: the column's type.
        named: the named types of the schema.

    Returns:
        The type as a message shows it; None if every type holds every value.
    """
    branches = [one for one in avro if one != "null"] if isinstance(avro, list) else [avro]
    if not branches:
        return "null"
    for branch in branches:
        declared = named.get(branch, branch) if isinstance(branch, str) else branch
        if not _holds(declared, kind):
            return _spelled(declared)
    return None


def proposed(kind: ColumnType) -> str:
    """Avro type to declare for a column, as JSON of a schema."""
    if _is_decimal(kind):
        digits = f'"precision": {kind.precision}, "scale": {kind.scale or 0}'
        return f'{{"type": "bytes", "logicalType": "decimal", {digits}}}'
    base, _, logical = _HOLDING.get(kind.name, ("string",))[0].partition(" ")
    return f'{{"type": "{base}", "logicalType": "{logical}"}}' if logical else f'"{base}"'


def _holds(avro: Any, kind: ColumnType) -> bool:
    spelled = _name(avro)
    if _is_decimal(kind):
        return spelled.endswith(" decimal") and _digits_fit(avro, kind.precision or 0, kind.scale or 0)
    if kind.name in INTEGERS:
        # Avro writes an integer as it is; a logical type only changes its meaning.
        spelled = spelled.partition(" ")[0]
    return spelled in _HOLDING.get(kind.name, ("string",))


def _is_decimal(kind: ColumnType) -> bool:
    return kind.name == "numeric" and kind.precision is not None


def _digits_fit(avro: Mapping[str, Any], precision: int, scale: int) -> bool:
    there = avro.get("scale", 0)
    return bool(there >= scale and avro["precision"] - there >= precision - scale)


def _name(avro: Any) -> str:
    if not isinstance(avro, dict):
        return str(avro)
    logical = f"{avro['type']} {avro.get('logicalType')}"
    return logical if logical in _LOGICAL else str(avro["type"])


def _spelled(avro: Any) -> str:
    name = _name(avro)
    return f"{name}({avro['precision']},{avro.get('scale', 0)})" if name.endswith(" decimal") else name
