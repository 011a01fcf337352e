"""Call a user's function that makes the key, the value and the headers of a topic's records."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.contract import ERROR, call, marks, require_columns
from epochline.arrow.cast.source import SOURCE_SCHEMA
from epochline.declare.columns import DELETED
from epochline.declare.functions import load_function
from epochline.errors import BatchContractError

_GIVEN = ("key", "value", "headers", ERROR)
_TYPES = {name: SOURCE_SCHEMA.field(name).type for name in ("key", "value", "headers")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serialized:
    """What a function made of some rows: one key, value and text of headers per row."""

    keys: pa.Array
    values: pa.Array
    headers: pa.Array
    """The text of an outbox: JSON, a list of [name, base64 of the value or null]."""
    problems: dict[int, str]
    """The reason for each row that cannot be sent."""


class Serializer:
    """Makes records with the function of a topic's ``value``.

    Args:
        reference: the function, as ``module:function``.

    Raises:
        DeclarationError: the function cannot be imported.
    """

    def __init__(self, reference: str) -> None:
        self._what = f"value {reference}"
        self._function = load_function(reference)

    def serialize(self, rows: pa.RecordBatch, deleted: pa.Array | None) -> Serialized:
        """One record per row. A deleted row has no value, whatever the function returns for it.

        Args:
            rows: the columns of the topic's record.
            deleted: whether each row is deleted, or None if no row is.

        Raises:
            BatchContractError: the function broke its contract.
            ColumnMismatchError: the function returned no ``value``.
        """
        marked = pa.repeat(False, rows.num_rows) if deleted is None else deleted
        given = call(self._what, self._function, rows.append_column(DELETED, marked))
        require_columns(self._what, given, ["value"])
        strangers = [name for name in given.schema.names if name not in _GIVEN]
        if strangers:
            raise BatchContractError(
                f"{self._what} returned {', '.join(strangers)}; it may return key, value, headers and {ERROR}"
            )
        problems, _ = marks(self._what, given)
        values = self._column(given, "value")
        if deleted is not None:
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        headers = self._headers(self._column(given, "headers"), problems)
        return Serialized(keys=self._column(given, "key"), values=values, headers=headers, problems=problems)

    def _column(self, given: pa.RecordBatch, name: str) -> pa.Array:
        wanted = _TYPES[name]
        if name not in given.schema.names:
            return pa.nulls(given.num_rows, wanted)
        column = given.column(name)
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise BatchContractError(f"{self._what} returned {name} with type {column.type}, not {wanted}") from error

    def _headers(self, headers: pa.Array, problems: dict[int, str]) -> pa.Array:
        if headers.null_count == len(headers):
            return pa.nulls(len(headers), pa.string())
        texts: list[str | None] = []
        for row, pairs in enumerate(headers.to_pylist()):
            if pairs and any(pair is None or pair["key"] is None for pair in pairs):
                problems.setdefault(row, "a header has no name")
                pairs = None
            texts.append(json.dumps([[pair["key"], _text(pair["value"])] for pair in pairs]) if pairs else None)
        return pa.array(texts, pa.string())


def _text(value: Any) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
