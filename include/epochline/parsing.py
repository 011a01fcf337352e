"""Ready-made parsers, as a declaration names them. What they do stands in ``epochline.arrow.parsers``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from epochline.columns import parse_type
from epochline.declared import Declared


class Bytes(Declared):
    """Each record's value as it is, in one column of type ``bytea``."""

    kind: Literal["bytes"] = "bytes"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "bytea"}


class Text(Declared):
    """Each record's value as UTF-8 text, in one column. Invalid UTF-8 and NUL are that record's error."""

    kind: Literal["text"] = "text"
    column: str = "value"

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return {self.column: "text"}


class Json(Declared):
    """Each record's value as one JSON object with the given members; others are ignored, missing ones are NULL.

    A value that is not an object, or a member that its type cannot hold, is that record's error.
    A record without a value (a tombstone) takes its columns from a JSON object in its key.
    """

    kind: Literal["json"] = "json"
    columns: dict[str, str] = Field(min_length=1)

    @field_validator("columns")
    @classmethod
    def _types_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        return {name: str(parse_type(text)) for name, text in columns.items()}

    @property
    def record(self) -> dict[str, str]:
        """Columns of the parsed record and their types."""
        return dict(self.columns)


class Regex(Declared):
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


ValueFormat = Annotated[Bytes | Text | Json, Field(discriminator="kind")]
"""What a topic's values are made by; the columns are those that a parser of the same name would give."""

ReadyMadeParser = Annotated[Bytes | Text | Json | Regex, Field(discriminator="kind")]
