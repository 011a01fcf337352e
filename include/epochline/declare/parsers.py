"""Declarations of ready-made parsers; ``epochline.arrow.formats.parsers`` implements them."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from epochline.declare.avro import Avro
from epochline.declare.base import DeclarationModel, in_order, known_types, reading_back, refuse_names
from epochline.declare.columns import parse_type, units_by_column
from epochline.declare.patterns import check_paths, check_pattern, is_json_of, named_groups, read_path
from epochline.declare.specs import BytesSpec, JsonSpec, RegexSpec, TextSpec


class Bytes(DeclarationModel):
    """Each record's unchanged value, in one column of type ``bytea``.

    Args:
        column: name of the column.
    """

    kind: Literal["bytes"] = "bytes"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        return {self.column: "bytea"}

    @property
    def spec(self) -> BytesSpec:
        return self._as(BytesSpec)


class Text(DeclarationModel):
    """Each record's value as UTF-8 text, in one column.

    Args:
        column: name of the column.
    """

    kind: Literal["text"] = "text"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        return {self.column: "text"}

    @property
    def spec(self) -> TextSpec:
        return self._as(TextSpec)


class Json(DeclarationModel):
    """Each record's value as one JSON object. Other members are ignored; missing members are NULL or have a default.

    A value that is not an object, or a member that its column cannot hold, makes a bad record.
    A record without a value (a tombstone) takes its columns from a JSON object in its key, by the same names and paths.
    For a topic's records only ``columns`` may be set.

    Args:
        columns: members and their PostgreSQL types.
        paths: by column, where its member lies if not directly in the object: ``$.address.city``, or
            ``$.address["zip code"]``. This and the following fields are only for ``parse``.
        defaults: by column, the value of a missing member, as JSON; a member that is null is NULL. A record without a
            value takes no default.
        unavailable: what a connector sends in place of a value that it does not have, such as Debezium's
            ``__debezium_unavailable_value``: as text, as bytes in base64 or hex, as uuid, or in an array or a map. An
            upsert table with ``keep_unavailable`` keeps its value; otherwise the record is bad.
        framed: whether a zero byte and a schema id of four bytes come before the object, as a schema registry frames
            values. The schema is not read.
        unit: what a number counts that stands for a date or a time, by column or for all such columns: ``days``, ``s``,
            ``ms``, ``us`` or ``ns`` since 1970-01-01 in UTC, or since midnight for a ``time``. A text is read as if no
            unit were given. A number with digits that the column does not keep makes a bad record.
        scale: by column, the scale of a decimal that is sent as base64 of its unscaled integer, as Kafka Connect does
            (Debezium's ``decimal.handling.mode=precise``). An object with ``scale`` and ``value`` needs none.
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
    _types_are_known = field_validator("columns")(known_types)

    @model_validator(mode="after")
    def _fields_are_of_columns(self) -> Json:
        kinds = {name: parse_type(text) for name, text in self.columns.items()}
        for field in ("paths", "defaults"):
            refuse_names(f"{field}:", sorted(set(getattr(self, field)) - set(kinds)), " is not among the columns")
        try:
            check_paths(self.steps, kinds)
        except ValueError as error:
            raise ValueError(f"paths: {error}") from error
        for name, value in self.defaults.items():
            if not is_json_of(value, kinds[name]):
                raise ValueError(f"defaults: {name} is {kinds[name]}, which {value!r} does not give in JSON")
        numbers = {name for name, kind in kinds.items() if kind.name == "numeric"}
        refuse_names("scale:", sorted(set(self.scale) - numbers), " is not a column of type numeric")
        _ = self.units  # checks them
        return self

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column whose numbers stand for a date or a time."""
        return units_by_column(self.unit, self.columns)

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
        return dict(self.columns)

    @property
    def spec(self) -> JsonSpec:
        return self._as(JsonSpec, scales=self.scale)


class Regex(DeclarationModel):
    r"""Each record's whole value, matched by a regular expression with named groups.

    The syntax is RE2's (https://github.com/google/re2/wiki/Syntax), without look-ahead and backreference: the time of a
    match grows with the length of the value alone. A group that took no
    part in the match is NULL; a group that matched nothing is the empty text.

    Args:
        pattern: the expression, with one named group ``(?P<name>…)`` for each column. Other groups give no column.
        columns: PostgreSQL types of groups that are not ``text``, which is the default.
    """

    kind: Literal["regex"] = "regex"
    pattern: str
    columns: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _pattern_and_columns_agree(self) -> Regex:
        if not reading_back.get():
            try:
                check_pattern(self.pattern)
            except ValueError as error:
                raise ValueError(f"pattern: {error}") from error
        strangers = sorted(set(self.columns) - set(named_groups(self.pattern)))
        refuse_names("columns:", strangers, " name no group of the pattern")
        known_types(self.columns)
        return self

    @property
    def record(self) -> dict[str, str]:
        return known_types({name: self.columns.get(name, "text") for name in named_groups(self.pattern)})

    @property
    def spec(self) -> RegexSpec:
        return self._as(RegexSpec, columns=self.record)


ValueFormat = Annotated[Bytes | Text | Json | Avro, Field(discriminator="kind")]
"""Format of a topic's values; it has the same columns as the parser of the same name."""

ReadyMadeParser = Annotated[Bytes | Text | Json | Regex | Avro, Field(discriminator="kind")]
