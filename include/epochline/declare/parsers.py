"""Declarations of ready-made parsers; ``epochline.arrow.formats.parsers`` implements them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import not_
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from epochline.declare.avro_types import proposed, unheld
from epochline.declare.base import DeclarationModel, in_order, reading_back
from epochline.declare.columns import TIMES, UNITS, parse_type
from epochline.declare.json_paths import check_paths, is_json_of, read_path
from epochline.declare.patterns import check_pattern, named_groups
from epochline.declare.specs import AvroSpec, BytesSpec, JsonSpec, RegexSpec, TextSpec


class Bytes(DeclarationModel):
    """Each record's unchanged value, in one column of type ``bytea``.

    Args:
        column: name of the column.
    """

    kind: Literal["bytes"] = "bytes"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "bytea"}

    @property
    def spec(self) -> BytesSpec:
        """The values that a Spark worker needs."""
        return BytesSpec(column=self.column)


class Text(DeclarationModel):
    """Each record's value as UTF-8 text, in one column. Invalid UTF-8 or a NUL makes a bad record.

    Args:
        column: name of the column.
    """

    kind: Literal["text"] = "text"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "text"}

    @property
    def spec(self) -> TextSpec:
        """The values that a Spark worker needs."""
        return TextSpec(column=self.column)


class Json(DeclarationModel):
    """Each record's value as one JSON object. Other members are ignored; missing members are NULL or have a default.

    A value that is not an object, or a member that its column cannot hold, makes a bad record.
    A record without a value (a tombstone) takes its columns from a JSON object in its key, by the same names and paths.

    Args:
        columns: members and their PostgreSQL types.
        paths: by column, where its member lies if not directly in the object: ``$.address.city``, or
            ``$.address["zip code"]``. The column is NULL if an object on the path is missing or null. Anything else on
            the path, also an array, makes a bad record. Only for ``parse``.
        defaults: by column, the value of a member that is missing, as JSON; a member that is null is NULL. The value is
            a part of the record: it also replaces the value of an existing row in an upsert table. A record without a
            value takes no default. Only for ``parse``.
        unavailable: what a connector sends in place of a value that it does not have, such as Debezium's
            ``__debezium_unavailable_value``. It is recognized as text, as bytes in base64 or hex, as uuid, and as an
            array or a map of it. An upsert table with ``keep_unavailable`` keeps its value; otherwise the record is
            bad. Only for ``parse``.
        framed: whether each value is in a schema registry's framing: a zero byte and a schema id of four bytes before
            the object. The schema is not read. Only for ``parse``.
        unit: what a number counts that stands for a date or a time, by column or for all such columns: ``days``, ``s``,
            ``ms``, ``us`` or ``ns`` since 1970-01-01 in UTC, or since midnight for a ``time``. A text is read as if no
            unit were given. A number with digits that the column does not keep makes a bad record. Only for ``parse``.
        scale: by column, the scale of a decimal that is sent as base64 of its unscaled integer, as Kafka Connect does
            (Debezium's ``decimal.handling.mode=precise``). An object with ``scale`` and ``value`` needs none. Only for
            ``parse``.
    """

    kind: Literal["json"] = "json"
    columns: dict[str, str] = Field(min_length=1)
    # An empty field is left out, so that the hashes of declarations in existing ledgers stay valid.
    paths: dict[str, str] = Field(default_factory=dict, exclude_if=not_)
    defaults: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    unavailable: str | None = Field(default=None, min_length=2, exclude_if=not_)
    framed: bool = Field(default=False, exclude_if=not_)
    unit: str | dict[str, str] = Field(default_factory=dict, exclude_if=not_)
    scale: dict[str, int] = Field(default_factory=dict, exclude_if=not_)

    _ordered = field_validator("columns", mode="before")(in_order)

    @field_validator("columns")
    @classmethod
    def _types_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        return {name: str(parse_type(text)) for name, text in columns.items()}

    @model_validator(mode="after")
    def _paths_lead_to_columns(self) -> Json:
        strangers = sorted(set(self.paths) - set(self.columns))
        if strangers:
            raise ValueError(f"paths: {', '.join(strangers)} is not among the columns")
        try:
            check_paths(self.steps, {name: parse_type(text) for name, text in self.columns.items()})
        except ValueError as error:
            raise ValueError(f"paths: {error}") from error
        return self

    @model_validator(mode="after")
    def _defaults_are_of_columns(self) -> Json:
        strangers = sorted(set(self.defaults) - set(self.columns))
        if strangers:
            raise ValueError(f"defaults: {', '.join(strangers)} is not among the columns")
        for name, value in self.defaults.items():
            kind = parse_type(self.columns[name])
            if not is_json_of(value, kind):
                raise ValueError(f"defaults: {name} is {kind}, which {value!r} does not give in JSON")
        return self

    @model_validator(mode="after")
    def _numbers_stand_for_columns(self) -> Json:
        kinds = {name: parse_type(text).name for name, text in self.columns.items()}
        for field, given, fitting in (("unit", self.units, TIMES), ("scale", self.scale, {"numeric"})):
            strangers = sorted(name for name in given if kinds.get(name) not in fitting)
            if strangers:
                raise ValueError(
                    f"{field}: {', '.join(strangers)} is not a column of type {', '.join(sorted(fitting))}"
                )
        unknown = sorted({unit for unit in self.units.values() if unit not in UNITS})
        if unknown or (isinstance(self.unit, str) and not self.units):
            what = f"{', '.join(unknown)} is no unit" if unknown else "there is no column of a date or a time"
            raise ValueError(f"unit: {what}; use one of {', '.join(UNITS)}, for columns of a date or a time")
        return self

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column whose numbers stand for a date or a time."""
        if isinstance(self.unit, dict):
            return self.unit
        return {name: self.unit for name, text in self.columns.items() if parse_type(text).name in TIMES}

    @property
    def reads_only(self) -> list[str]:
        """The given fields that have a meaning for ``parse`` alone."""
        return [name for name in ("paths", "defaults", "unavailable", "framed", "unit", "scale") if getattr(self, name)]

    @property
    def steps(self) -> dict[str, tuple[str, ...]]:
        """The names of the members that lead to each column's value, from the outermost object inwards."""
        return {name: read_path(self.paths[name]) if name in self.paths else (name,) for name in self.columns}

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return dict(self.columns)

    @property
    def spec(self) -> JsonSpec:
        """The values that a Spark worker needs."""
        return JsonSpec(
            columns=self.columns,
            steps=self.steps,
            defaults=self.defaults,
            unavailable=self.unavailable,
            framed=self.framed,
            units=self.units,
            scales=self.scale,
        )


class Regex(DeclarationModel):
    r"""Each record's whole value, matched by a regular expression with named groups.

    The syntax is RE2's (https://github.com/google/re2/wiki/Syntax): it has classes such as ``[[:alpha:]]`` and ``\pL``,
    and the flags ``(?ims-U)``, but no look-ahead and no backreference. The time of a match grows with the length of the
    value, whatever the pattern. A value that does not match makes a bad record. Every named group is a column of type
    ``text`` unless ``columns`` gives another type. A group that took no part in the match is NULL; a group that matched
    nothing is the empty text.

    Args:
        pattern: the expression, with one named group ``(?P<name>…)`` for each column. Other groups give no column.
        columns: PostgreSQL types of groups that are not ``text``.
    """

    kind: Literal["regex"] = "regex"
    pattern: str
    columns: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _pattern_and_columns_agree(self) -> Regex:
        # A stored declaration may be older than this check and must stay readable, if only to abort its epoch.
        if not reading_back.get():
            try:
                check_pattern(self.pattern)
            except ValueError as error:
                raise ValueError(f"pattern: {error}") from error
        strangers = sorted(set(self.columns) - set(named_groups(self.pattern)))
        if strangers:
            raise ValueError(f"columns: {', '.join(strangers)} name no group of the pattern")
        for text in self.columns.values():
            parse_type(text)
        return self

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {name: str(parse_type(self.columns.get(name, "text"))) for name in named_groups(self.pattern)}

    @property
    def spec(self) -> RegexSpec:
        """The values that a Spark worker needs."""
        return RegexSpec(pattern=self.pattern, columns=self.record)


class Avro(DeclarationModel):
    """Each record's value as an Avro record whose schema a registry holds: a zero byte, the schema's id, the body.

    A value is read with its writer's schema and its fields are taken by name. Other fields are ignored; missing fields
    are NULL. An id that the registry does not know, bytes that are not of that schema, or a value that its column
    cannot hold makes a bad record. A registry that does not answer fails the attempt; a repeat helps. A record without
    a value (a tombstone) takes its columns from an Avro record in its key.

    Args:
        columns: fields and their PostgreSQL types.
        subject: for writing: the subject of the schema; by default the topic's name and ``-value``.
        schema_: for writing: the schema, a record of these columns. The default schema allows null in every field, has
            logical types for timestamps, times, dates, ``numeric(p,s)`` and ``uuid``, and a string for every column
            type without an Avro type, including ``numeric`` without a precision. Each field of a schema given here
            must hold every value of its column.
        registry: id of the registry's connection.
    """

    kind: Literal["avro"] = "avro"
    columns: dict[str, str] = Field(min_length=1)
    subject: str | None = Field(default=None, min_length=1)
    schema_: dict[str, Any] | None = None
    registry: str = "epochline_registry"

    _ordered = field_validator("columns", mode="before")(in_order)

    @field_validator("columns")
    @classmethod
    def _fields_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"Avro has no field named {name!r} (letters, digits and _, no digit at the beginning)")
        return {name: str(parse_type(text)) for name, text in columns.items()}

    @model_validator(mode="after")
    def _schema_is_of_the_columns(self) -> Avro:
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
        fields = {one["name"]: "default" in one for one in self.schema_["fields"]}
        strangers = sorted(set(self.columns) - set(fields))
        unfilled = sorted(name for name, has_default in fields.items() if not has_default and name not in self.columns)
        if strangers or unfilled:
            raise ValueError(
                f"schema_: has no field {', '.join(strangers)}; take it out of columns"
                if strangers
                else f"schema_: {', '.join(unfilled)} has no default and is not among the columns"
            )
        # A stored declaration may be older than this check and must stay readable, if only to abort its epoch.
        if isinstance(parsed, dict) and not reading_back.get():
            self._fields_hold_their_columns({one["name"]: one["type"] for one in parsed["fields"]}, named)
        return self

    def _fields_hold_their_columns(self, fields: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        """Refuse types for which Avro's writer would silently truncate or misread values."""
        for name, text in self.columns.items():
            kind = parse_type(text)
            found = unheld(fields[name], kind, named)
            if found is not None:
                raise ValueError(
                    f"schema_: field {name} has the Avro type {found}, which does not hold every {kind} unchanged;"
                    f" declare the field as {proposed(kind)}, or give the column a type that {found} holds"
                )

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return dict(self.columns)

    @property
    def spec(self) -> AvroSpec:
        """The values that a Spark worker needs."""
        return AvroSpec(columns=self.columns, subject=self.subject, schema=self.schema_, registry=self.registry)


ValueFormat = Annotated[Bytes | Text | Json | Avro, Field(discriminator="kind")]
"""Format of a topic's values; it has the same columns as the parser of the same name."""

ReadyMadeParser = Annotated[Bytes | Text | Json | Regex | Avro, Field(discriminator="kind")]
