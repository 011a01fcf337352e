"""Give the logical types of an Avro schema names of our own, so that values are read as they were written. Pure.

Fastavro turns values of logical types into Python's: it rounds a decimal to its precision and knows only the years 1 to
9999. A logical type that the Avro specification calls invalid is left out, and its values are those of the plain type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXACT = "epochline-"
"""Prefix of the names that a reader of `epochline.arrow.formats.avro_values` has."""

LOGICAL: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {"time-micros"} | {f"{local}timestamp-{u}" for local in ("", "local-") for u in ("millis", "micros", "nanos")}
    ),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "duration", "uuid"}),
}
"""Logical types by their Avro type. ``uuid`` of a string is a text, and any other one is ignored."""

_SIZES = {"duration": 12, "uuid": 16}


def exact_schema(schema: Any) -> Any:
    """A schema, as JSON gives it, whose logical types are renamed with `EXACT` or left out."""
    if isinstance(schema, list):
        return [exact_schema(one) for one in schema]
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
    """Whether the specification lets the logical type count."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or logical not in LOGICAL.get(str(schema.get("type")), ()):
        return False
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        return type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0
    return schema.get("size") == _SIZES.get(logical)


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
