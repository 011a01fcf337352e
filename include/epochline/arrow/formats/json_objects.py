"""Write each row as a compact JSON object: the counterpart of `epochline.arrow.formats.json_values`."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import outside_years, spelled_out
from epochline.arrow.cast.jsontext import read_json, write_json_as_utf8
from epochline.arrow.cast.reasons import any_true
from epochline.arrow.formats.postgres_text import as_text, numeric_text
from epochline.declare.columns import INTEGERS, ColumnType

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class JsonWriter:
    """Writes columns as JSON objects with members in the declared order; NULL is ``null``.

    Numbers are exact, ``json`` and ``jsonb`` are embedded, timestamps are ISO 8601 (with a ``Z`` if the type has a
    zone), ``bytea`` is base64, and everything else is PostgreSQL's text. `epochline.declare.parsers.Json` reads the
    objects back, except half a surrogate pair, which a ``json`` may contain as an escape.
    """

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._columns = dict(columns)

    def write(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One object per row of cast columns, and the reason for each row that JSON cannot express."""
        problems: dict[int, str] = {}
        pieces: list[Any] = []
        for at, (name, kind) in enumerate(self._columns.items()):
            column = rows.column(name)
            found, reason = _impossible(column, kind)
            for row in found:
                problems.setdefault(row, f"{name}: {reason}")
            pieces += [f"{',' if at else '{'}{_quoted(name)}:", pc.fill_null(_member(column, kind), "null")]
        return pc.binary_join_element_wise(*pieces, "}", ""), problems


def _impossible(column: pa.Array, kind: ColumnType) -> tuple[list[int], str]:
    bad: pa.Array | None = None
    if pa.types.is_floating(column.type):
        bad = pc.invert(pc.is_finite(column))
    elif kind.name == "numeric" and pa.types.is_string(column.type):
        bad = pc.match_substring_regex(column, "[NI]")
    if bad is not None:
        return pc.indices_nonzero(pc.fill_null(bad, False)).to_pylist(), "JSON has no NaN and no Infinity"
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return outside_years(column), "ISO 8601 has only the years 1 to 9999"
    return [], ""


def _member(column: pa.Array, kind: ColumnType) -> pa.Array:
    if kind.name == "boolean" or kind.name in INTEGERS or pa.types.is_floating(column.type):
        return column.cast(pa.string())
    if kind.name == "numeric":
        return numeric_text(column)
    if kind.name in ("json", "jsonb") or kind.element is not None:
        return _each(column, _document)
    if kind.name == "bytea":
        return _each(column, lambda value: f'"{base64.b64encode(value).decode()}"')
    if not kind.by_text and (kind.name == "date" or kind.name.startswith(("timestamp", "time "))):
        texts = pc.replace_substring(spelled_out(column).cast(pa.string()), " ", "T")
        return pc.binary_join_element_wise('"', texts, '"', "")
    return _texts(as_text(column, kind))


def _document(text: str) -> str:
    return write_json_as_utf8(read_json(text))


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())


def _texts(texts: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    special = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPE), False)
    if not any_true(special):
        return quoted
    return pc.replace_with_mask(quoted, special, _each(texts.filter(special), _quoted))
