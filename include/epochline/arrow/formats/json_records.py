"""Parse records as JSON objects: framing, defaults of missing members, values that a record leaves out."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.contract import ERROR
from epochline.arrow.cast.jsontext import read_json, write_json_as_utf8
from epochline.arrow.cast.reasons import DoesNotFitError
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.columns import WITHIN, Placeholder, body_of, cast_batch, texts_of, unframed
from epochline.arrow.formats.json_values import JsonReader, joined
from epochline.declare.specs import JsonSpec
from epochline.errors import DeclarationError


class JsonParser:
    """Parses batches as `epochline.declare.parsers.Json` says; raises `DeclarationError` for an unfit default."""

    def __init__(self, parse: JsonSpec) -> None:
        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._reader = JsonReader(self._kinds, parse.steps, parse.units, parse.scales)
        self._steps = parse.steps
        self._framed = parse.framed
        self._defaults = {name: read_json(json.dumps(value)) for name, value in parse.defaults.items()}
        self._placeholder = None if parse.unavailable is None else Placeholder(parse.unavailable)
        if self._defaults:
            self._check_defaults()

    def _check_defaults(self) -> None:
        columns, problems = self._read(pa.array(["{}"]))
        problem = cast_batch(self._kinds, columns, problems).column(ERROR)[0].as_py()
        if problem is not None:
            raise DeclarationError(f"parse.defaults: {problem}; give a default that the column holds")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns, ``_error``, and ``_unavailable`` if a placeholder is declared."""
        given = batch.column("value")
        unfit: dict[int, str] = {}
        if self._framed:
            given, unfit = unframed(given)
        values = texts_of("value", given)
        texts: pa.Array = values.array
        left_out: dict[int, list[str]] = {}
        if self._placeholder is not None:
            texts, left_out, within = self._without_placeholders(texts, self._placeholder)
            unfit |= within
        if texts.null_count == 0:
            columns, problems = self._read(texts)
        else:
            columns, problems = self._with_tombstones(batch, texts)
        problems = unfit | values.problems | problems
        return cast_batch(self._kinds, columns, problems, None if self._placeholder is None else left_out)

    def _read(self, texts: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns of texts without NULL; a member that is missing has its default."""
        columns, problems = self._reader.read(texts)
        empty = pa.array([False] * len(texts), pa.bool_())
        for column, name in zip(columns, self._kinds, strict=True):
            if name in self._defaults and column.null_count:
                empty = pc.or_(empty, column.is_null())
        rows = [row for row in pc.indices_nonzero(empty).to_pylist() if row not in problems]
        if not rows:
            return columns, problems
        again: list[Any] = texts.take(pa.array(rows, pa.int64())).to_pylist()
        filled, more = self._reader.read(pa.array([self._with_defaults(text) for text in again], pa.string()))
        places = list(range(len(texts)))
        for at, row in enumerate(rows):
            places[row] = len(texts) + at
        problems |= {rows[at]: reason for at, reason in more.items()}
        return [joined(pair).take(pa.array(places)) for pair in zip(columns, filled, strict=True)], problems

    def _with_defaults(self, text: str) -> str:
        document = read_json(text)
        for name, value in self._defaults.items():
            *outer, last = self._steps[name]
            inner = document
            for step in outer:
                inner = inner.setdefault(step, {}) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner.setdefault(last, value)
        return write_json_as_utf8(document)

    def _without_placeholders(
        self, texts: pa.Array, placeholder: Placeholder
    ) -> tuple[pa.Array, dict[int, list[str]], dict[int, str]]:
        """The texts with null where a column's value is the placeholder, the names of these columns, and bad rows."""
        changed: dict[int, str] = {}
        within: dict[int, str] = {}
        names: dict[int, list[str]] = {}
        for row in pc.indices_nonzero(placeholder.may_be_in(texts)).to_pylist():
            try:
                document = read_json(texts[row].as_py())
            except DoesNotFitError:
                continue  # the reader says why
            replaced = [name for name, steps in self._steps.items() if _set_to_null(document, steps, placeholder)]
            if replaced:
                changed[row], names[row] = write_json_as_utf8(document), replaced
            for name, steps in self._steps.items():
                if placeholder.lies_within(_at(document, steps)):
                    within.setdefault(row, f"{name}: {WITHIN}")
        if not changed:
            return texts, names, within
        whole = texts.to_pylist()
        for row, text in changed.items():
            whole[row] = text
        return pa.array(whole, pa.string()), names, within

    def _with_tombstones(self, batch: pa.RecordBatch, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Read columns, for records without a value from their keys. Undecodable values stay NULL."""
        with_value = pc.indices_nonzero(values.is_valid()).to_pylist()
        without = pc.indices_nonzero(values.is_null()).to_pylist()
        columns, unfit = self._read(values.take(pa.array(with_value, pa.int64())))
        problems = {with_value[row]: reason for row, reason in unfit.items()}
        tombstones = batch.column("value").is_null().to_pylist()
        keys = batch.column("key").to_pylist()
        texts = [_object_text(keys[row], framed=self._framed) if tombstones[row] else "{}" for row in without]
        from_keys, unfit = self._reader.read_each(texts)
        problems |= {without[row]: f"key: {reason}" for row, reason in unfit.items()}
        order = sorted(range(len(values)), key=(with_value + without).__getitem__)
        back = pa.array(order, pa.int64())
        return [joined(pair).take(back) for pair in zip(columns, from_keys, strict=True)], problems


def _object_text(key: bytes | None, *, framed: bool) -> str:
    """The key if it may be a JSON object, else an empty object: other keys contain no columns."""
    try:
        text = (body_of(key) if framed else key or b"").decode()
    except UnicodeDecodeError:
        return "{}"
    return text if text.lstrip(" \t\r\n").startswith("{") else "{}"


def _at(document: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        document = document.get(step) if isinstance(document, dict) else None
    return document


def _set_to_null(document: Any, steps: Sequence[str], placeholder: Placeholder) -> bool:
    inner = _at(document, steps[:-1])
    if not isinstance(inner, dict) or not placeholder.stands_for(inner.get(steps[-1])):
        return False
    inner[steps[-1]] = None
    return True
