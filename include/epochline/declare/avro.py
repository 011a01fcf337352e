"""Declaration of Avro records, to read and to write; ``epochline.arrow.formats`` implements it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import not_
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import DeclarationModel, in_order, known_types, reading_back, refuse_names
from epochline.declare.columns import AVRO, INTEGERS, ColumnType, avro_type, parse_type, units_by_column
from epochline.declare.specs import AvroSpec


class Avro(DeclarationModel):
    """Each record's value as an Avro record whose schema a registry holds: a zero byte, the schema's id, the body.

    Fields are taken by name: other fields are ignored, missing fields are NULL. An id that the registry does not know,
    bytes that are not of that schema, or a value that its column cannot hold makes a bad record. A registry that does
    not answer fails the attempt; a repeat helps. A tombstone takes its columns from an Avro record in its key.

    Args:
        columns: fields and their PostgreSQL types.
        subject: for writing: the subject of the schema; by default the topic's name and ``-value``.
        schema_: for writing: the schema, a record of these columns. The default schema allows null in every field, has
            logical types for timestamps, times, dates, ``numeric(p,s)`` and ``uuid``, and a string for every column
            type without an Avro type, including ``numeric`` without a precision. Each field of a schema given here
            must hold every value of its column.
        registry: id of the registry's connection.
        unavailable: for reading: as for `Json`.
        unit: for reading: what a plain integer counts that stands for a date or a time, as for `Json`. Avro's logical
            types need none.
    """

    kind: Literal["avro"] = "avro"
    columns: dict[str, str] = Field(min_length=1)
    subject: str | None = Field(default=None, min_length=1)
    schema_: dict[str, Any] | None = None
    registry: str = "epochline_registry"
    # An empty field is left out, so that the hashes of declarations in existing ledgers stay valid.
    unavailable: str | None = Field(default=None, min_length=2, exclude_if=not_)
    unit: str | dict[str, str] = Field(default_factory=dict, exclude_if=not_)

    _ordered = field_validator("columns", mode="before")(in_order)

    @field_validator("columns")
    @classmethod
    def _fields_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"Avro has no field named {name!r} (letters, digits and _, no digit at the beginning)")
        return known_types(columns)

    @model_validator(mode="after")
    def _schema_and_units_are_of_the_columns(self) -> Avro:
        _ = self.units  # checks them
        if self.schema_ is None:
            return self
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

        named: dict[str, Any] = {}
        try:
            parsed = parse_schema(self.schema_, named_schemas=named)
        except (SchemaParseException, UnknownType, KeyError) as error:
            raise ValueError(f"schema_: not an Avro schema: {type(error).__name__}: {error}") from error
        if self.schema_.get("type") != "record":
            raise ValueError("schema_: must be a record")
        fields = {field["name"]: "default" in field for field in self.schema_["fields"]}
        refuse_names("schema_: has no field", sorted(set(self.columns) - set(fields)), "; take it out of columns")
        unfilled = sorted(name for name, has_default in fields.items() if not has_default and name not in self.columns)
        refuse_names("schema_:", unfilled, " has no default and is not among the columns")
        if isinstance(parsed, dict) and not reading_back.get():
            self._fields_hold_their_columns({field["name"]: field["type"] for field in parsed["fields"]}, named)
        return self

    def _fields_hold_their_columns(self, fields: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        """Refuse types for which Avro's writer would silently truncate or misread values."""
        for name, text in self.columns.items():
            kind = parse_type(text)
            avro = unheld(fields[name], kind, named)
            if avro is not None:
                raise ValueError(
                    f"schema_: field {name} has the Avro type {avro}, which does not hold every {kind} unchanged;"
                    f" declare the field as {json.dumps(avro_type(kind))}, or give the column a type that {avro} holds"
                )

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column whose numbers stand for a date or a time."""
        return units_by_column(self.unit, self.columns)

    @property
    def reads_only(self) -> list[str]:
        """The given fields that have a meaning for ``parse`` alone."""
        return [name for name in ("unavailable", "unit") if getattr(self, name)]

    @property
    def record(self) -> dict[str, str]:
        return dict(self.columns)

    @property
    def spec(self) -> AvroSpec:
        return self._as(AvroSpec, schema=self.schema_)


_LOGICAL = {
    "int date", "int time-millis", "long time-micros", "string uuid", "bytes decimal", "fixed decimal",
    *(f"long {local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
}  # fmt: skip
"""Known logical types. Any other is ignored, as the Avro specification demands."""


def unheld(avro: Any, kind: ColumnType, named: Mapping[str, Any]) -> str | None:
    """The first Avro type of a field that does not hold every value of a column, as a message shows it."""
    branches = [branch for branch in avro if branch != "null"] if isinstance(avro, list) else [avro]
    if not branches:
        return "null"
    for branch in branches:
        declared = named.get(branch, branch) if isinstance(branch, str) else branch
        if not _holds(declared, kind):
            return _spelled(declared)
    return None


def _holds(avro: Any, kind: ColumnType) -> bool:
    spelled = _name(avro)
    if kind.name == "numeric" and kind.precision is not None:
        if not spelled.endswith(" decimal"):
            return False
        spare = avro.get("scale", 0) - (kind.scale or 0)
        return bool(0 <= spare <= avro["precision"] - (kind.precision or 0))
    if kind.name in INTEGERS:
        # Avro writes an integer as it is; a logical type only changes its meaning.
        spelled = spelled.partition(" ")[0]
    return spelled in AVRO.get(kind.name, ("string",))


def _name(avro: Any) -> str:
    if not isinstance(avro, dict):
        return str(avro)
    logical = f"{avro['type']} {avro.get('logicalType')}"
    return logical if logical in _LOGICAL else str(avro["type"])


def _spelled(avro: Any) -> str:
    name = _name(avro)
    return f"{name}({avro['precision']},{avro.get('scale', 0)})" if name.endswith(" decimal") else name
