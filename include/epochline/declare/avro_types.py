"""Which types of Avro hold every value of a column's type. Pure: one table says so."""

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
    # The length of a fixed and the symbols of an enum are checked value by value; no column's type says them.
    "bytea": ("bytes", "fixed"),
    "text": ("string", "enum"),
    "character varying": ("string", "enum"),
    "date": ("int date",),
    "time without time zone": ("long time-micros",),
    "timestamp with time zone": _TIMESTAMP,
    "timestamp without time zone": _TIMESTAMP[::-1],
    "uuid": ("string", "string uuid"),
}
"""By column type; what is not named is written as text. The first is what a message proposes."""

_LOGICAL = {
    "int date", "int time-millis", "long time-micros", "string uuid", "bytes decimal", "fixed decimal",
    *(f"long {local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
}  # fmt: skip
"""Others are ignored, as Avro demands."""


def unheld(avro: Any, kind: ColumnType, named: Mapping[str, Any]) -> str | None:
    """The first Avro type of a field, or of its union, that does not hold every value of a column; None: all do.

    Args:
        avro: the field's type, as fastavro parsed it.
        kind: the column's type.
        named: types that are named in the schema.
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
    """The Avro type to declare for a column, as it is written in a schema."""
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
        # A number is written as it is, whatever a logical type makes of it.
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
