"""Build the function that parses a pipeline's record batches: a ready-made one or the user's."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import ERROR, BatchFunction, call, require_columns
from epochline.arrow.cast.jsontext import read_json, write_json_as_utf8
from epochline.arrow.cast.reasons import DoesNotFitError, any_true
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.columns import WITHIN, Placeholder, body_of, cast_batch, parsed_batch, texts_of, unframed
from epochline.arrow.formats.json_values import JsonReader, joined
from epochline.config.registry import registry
from epochline.declare.patterns import whole_match
from epochline.declare.specs import AvroSpec, JsonSpec, PipelineSpec, RegexSpec, TextSpec, load_function
from epochline.errors import DeclarationError


def build_parser(pipeline: PipelineSpec) -> BatchFunction:
    """The function that parses this pipeline's batches; raises `DeclarationError` if it cannot be built."""
    parse = pipeline.parse
    if isinstance(parse, str):
        return _user_function(pipeline, parse, load_function(parse))
    if isinstance(parse, JsonSpec):
        return JsonParser(parse, keeps_texts=pipeline.only_tables)
    if isinstance(parse, AvroSpec):
        return _avro_parser(parse)
    if isinstance(parse, RegexSpec):
        return _RegexParser(parse)
    return partial(_texts if isinstance(parse, TextSpec) else _bytes, parse.column)


def _user_function(pipeline: PipelineSpec, reference: str, function: BatchFunction) -> BatchFunction:
    what = f"parse {reference}"
    wanted = [name for name in pipeline.parsed_columns if pipeline.explode is None]

    def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
        parsed = call(what, function, batch)
        require_columns(what, parsed, wanted)
        return parsed

    return parse


def _avro_parser(spec: AvroSpec) -> BatchFunction:
    # Loads fastavro.
    from epochline.arrow.formats.avro import AvroReader

    kinds = {name: column_type(text) for name, text in spec.columns.items()}
    reader = AvroReader(kinds, registry(spec.registry), spec.unavailable, spec.units)

    def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, problems, left_out = reader.read(batch.column("value"), batch.column("key"))
        return cast_batch(kinds, columns, problems, None if spec.unavailable is None else left_out)

    return parse


def _bytes(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    return parsed_batch({column: batch.column("value")}, {})


def _texts(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    texts = texts_of(column, batch.column("value"))
    return parsed_batch({column: texts.array}, texts.problems)


class _RegexParser:
    def __init__(self, parse: RegexSpec) -> None:
        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._pattern = whole_match(parse.pattern)
        try:
            pc.extract_regex(pa.array([""]), self._pattern)
        except pa.ArrowInvalid as error:
            raise DeclarationError(f"parse.pattern: RE2 refuses the pattern: {error}") from error

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = texts_of("value", batch.column("value"))
        matches = pc.extract_regex(values.array, self._pattern)
        problems = dict(values.problems)
        unmatched = pc.and_(matches.is_null(), values.array.is_valid())
        for row in pc.indices_nonzero(unmatched).to_pylist():
            problems[row] = "the value does not match the pattern"
        found = _fields(matches)
        groups = self._absent_groups(values.array, {name: found[name] for name in self._kinds})
        return cast_batch(self._kinds, [groups[name] for name in self._kinds], problems)

    def _absent_groups(self, values: pa.Array, groups: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Set groups that took no part in the match to NULL: their text is empty, and they have no place in it."""
        doubtful = pa.array(np.zeros(len(values), bool))
        for group in groups.values():
            doubtful = pc.or_(doubtful, pc.fill_null(pc.equal(group, ""), False))
        if not any_true(doubtful):
            return groups
        places = _fields(pc.extract_regex_span(values.filter(doubtful), self._pattern))
        return {
            name: pc.if_else(pc.replace_with_mask(doubtful, doubtful, places[name].is_null()), None, group)
            for name, group in groups.items()
        }


def _fields(matches: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in matches.type), matches.flatten(), strict=True))


class JsonParser:
    """Parses batches as `epochline.declare.parsers.Json` says; raises `DeclarationError` for an unfit default."""

    def __init__(self, parse: JsonSpec, *, keeps_texts: bool) -> None:
        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._reader = JsonReader(self._kinds, parse.steps, parse.units, parse.scales, keeps_texts=keeps_texts)
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
        bodies = batch.column("value")
        unfit: dict[int, str] = {}
        if self._framed:
            bodies, unfit = unframed(bodies)
        values = texts_of("value", bodies)
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
        # A value holds no NUL, for it was cast to text. Only the reader of single records is sure to refuse one.
        has_nul = any("\0" in text for text in texts)
        from_keys, unfit = self._reader.read_each(texts) if has_nul else self._reader.read(pa.array(texts, pa.string()))
        problems |= {without[row]: f"key: {reason}" for row, reason in unfit.items()}
        back = pc.sort_indices(pa.array(with_value + without, pa.int64()))
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
