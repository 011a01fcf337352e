"""Ready-made parsers, as a declaration names them. What they do stands in ``epochline.arrow.formats.parsers``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from epochline.declare.avro_types import proposed, unheld
from epochline.declare.base import DeclarationModel, in_order, reading_back
from epochline.declare.columns import parse_type
from epochline.declare.specs import AvroSpec, BytesSpec, JsonSpec, RegexSpec, TextSpec


class Bytes(DeclarationModel):
    """Each record's value as it is, in one column of type ``bytea``."""

    kind: Literal["bytes"] = "bytes"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "bytea"}

    @property
    def spec(self) -> BytesSpec:
        """What a worker is told of it."""
        return BytesSpec(column=self.column)


class Text(DeclarationModel):
    """Each record's value as UTF-8 text, in one column. Invalid UTF-8 and NUL are that record's error."""

    kind: Literal["text"] = "text"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "text"}

    @property
    def spec(self) -> TextSpec:
        """What a worker is told of it."""
        return TextSpec(column=self.column)


class Json(DeclarationModel):
    """Each record's value as one JSON object with the given members; others are ignored, missing ones are NULL.

    A value that is not an object, or a member that its type cannot hold, is that record's error.
    A record without a value (a tombstone) takes its columns from a JSON object in its key.
    """

    kind: Literal["json"] = "json"
    columns: dict[str, str] = Field(min_length=1)

    _ordered = field_validator("columns", mode="before")(in_order)

    @field_validator("columns")
    @classmethod
    def _types_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        return {name: str(parse_type(text)) for name, text in columns.items()}

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return dict(self.columns)

    @property
    def spec(self) -> JsonSpec:
        """What a worker is told of it."""
        return JsonSpec(columns=self.columns)


class Regex(DeclarationModel):
    """Each record's value matched, as a whole, by a regular expression with named groups (RE2 syntax).

    A value that does not match is that record's error. Every named group is a column; ``columns`` gives the types
    of those that are not ``text``. A group that took no part in the match is NULL.
    """

    kind: Literal["regex"] = "regex"
    pattern: str
    columns: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _pattern_and_columns_agree(self) -> Regex:
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern: not a regular expression: {error}") from error
        if not groups:
            raise ValueError("pattern: has no named group (?P<name>…), so there is no column to fill")
        strangers = sorted(set(self.columns) - set(groups))
        if strangers:
            raise ValueError(f"columns: {', '.join(strangers)} name no group of the pattern")
        for text in self.columns.values():
            parse_type(text)
        return self

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        groups = re.compile(self.pattern).groupindex
        return {name: str(parse_type(self.columns.get(name, "text"))) for name in groups}

    @property
    def spec(self) -> RegexSpec:
        """What a worker is told of it."""
        return RegexSpec(pattern=self.pattern, columns=self.record)


class Avro(DeclarationModel):
    """Each record's value as an Avro record whose schema a registry holds: a zero byte, the schema's id, the body.

    Read with the schema that it was written with, its fields taken by name; others are ignored, missing ones are NULL.
    An id that the registry does not know, bytes that are not of that schema, or a value that its column cannot hold is
    that record's error; a registry that does not answer fails the attempt, and a repeat helps. A record without a
    value (a tombstone) takes its columns from such a record in its key.

    Args:
        columns: fields and their PostgreSQL types.
        subject: for what is written: where its schema is registered; by default the topic's name and ``-value``.
        schema_: for what is written: its schema, a record of these columns. By default it is made from them: every
            field may be null; timestamps, times, dates, ``numeric(p,s)`` and ``uuid`` are logical types; what Avro has
            no type for, ``numeric`` without a precision too, is a string. A type of yours must hold every value of
            its column.
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
            raise ValueError(f"schema_: is no Avro schema: {type(error).__name__}: {error}") from error
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
        # What was stored before there was this check has to be read, if only to be aborted.
        if isinstance(parsed, dict) and not reading_back.get():
            self._fields_hold_their_columns({one["name"]: one["type"] for one in parsed["fields"]}, named)
        return self

    def _fields_hold_their_columns(self, fields: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        """Avro's writer would cut a value that is too large or too precise, or take it for another, without a word."""
        for name, text in self.columns.items():
            kind = parse_type(text)
            found = unheld(fields[name], kind, named)
            if found is not None:
                raise ValueError(
                    f"schema_: field {name} is of Avro's {found}, which does not hold every {kind} as it is;"
                    f" declare the field as {proposed(kind)}, or the column as what {found} holds"
                )

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return dict(self.columns)

    @property
    def spec(self) -> AvroSpec:
        """What a worker is told of it."""
        return AvroSpec(columns=self.columns, subject=self.subject, schema=self.schema_, registry=self.registry)


ValueFormat = Annotated[Bytes | Text | Json | Avro, Field(discriminator="kind")]
"""What a topic's values are made by; the columns are those that a parser of the same name would give."""

ReadyMadeParser = Annotated[Bytes | Text | Json | Regex | Avro, Field(discriminator="kind")]
