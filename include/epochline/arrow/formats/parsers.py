"""Build the function that parses a pipeline's record batches: a ready-made one or the user's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.checks import any_true
from epochline.arrow.cast.contract import ERROR, BatchFunction, call, require_columns
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.json_values import JsonReader, joined
from epochline.config.registry import registry
from epochline.declare.columns import ColumnType, parse_type
from epochline.declare.functions import load_function
from epochline.declare.patterns import whole_match
from epochline.declare.specs import AvroSpec, BytesSpec, JsonSpec, PipelineSpec, RegexSpec, TextSpec
from epochline.errors import DeclarationError

_TEXT = parse_type("text")


def build_parser(pipeline: PipelineSpec) -> BatchFunction:
    """The function that parses this pipeline's source batches.

    It returns one row per input row, in order: the record's columns and optionally ``_error`` and ``_skip``. Ready-made
    parsers cast the columns to the record's types; a user's function may return other types.

    Raises:
        DeclarationError: the function cannot be imported, or Arrow's RE2 refuses the pattern.
    """
    parse = pipeline.parse
    if isinstance(parse, str):
        return _user_function(pipeline, parse, load_function(parse))
    if isinstance(parse, JsonSpec):
        return _JsonParser(parse)
    if isinstance(parse, AvroSpec):
        return _AvroParser(parse)
    if isinstance(parse, RegexSpec):
        return _RegexParser(parse)
    if isinstance(parse, TextSpec):
        return _TextParser(parse)
    return _BytesParser(parse)


def _user_function(pipeline: PipelineSpec, reference: str, function: BatchFunction) -> BatchFunction:
    what = f"parse {reference}"
    wanted = [name for name in pipeline.parsed_columns if pipeline.explode is None]

    def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
        given = call(what, function, batch)
        require_columns(what, given, wanted)
        return given

    return parse


def _with_errors(names: list[str], columns: list[pa.Array], problems: dict[int, str]) -> pa.RecordBatch:
    """A batch of the columns and ``_error``."""
    rows = len(columns[0])
    reasons = pa.nulls(rows, pa.string())
    if problems:
        reasons = pa.array([problems.get(row) for row in range(rows)], pa.string())
    return pa.RecordBatch.from_arrays([*columns, reasons], names=[*names, ERROR])


def _cast(
    columns: list[pa.Array], kinds: dict[str, ColumnType], problems: dict[int, str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """Cast every column. A row keeps its first problem."""
    cast_columns = []
    for column, (name, kind) in zip(columns, kinds.items(), strict=True):
        cast = cast_column(name, column, kind)
        problems = cast.problems | problems
        cast_columns.append(cast.array)
    return cast_columns, problems


class _AvroParser:
    def __init__(self, parse: AvroSpec) -> None:
        # Loads fastavro.
        from epochline.arrow.formats.avro import AvroReader

        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._reader = AvroReader(self._kinds, registry(parse.registry))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, problems = self._reader.read(batch.column("value"), batch.column("key"))
        columns, problems = _cast(columns, self._kinds, problems)
        return _with_errors(list(self._kinds), columns, problems)


class _BytesParser:
    def __init__(self, parse: BytesSpec) -> None:
        self._column = parse.column

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _with_errors([self._column], [batch.column("value")], {})


class _TextParser:
    def __init__(self, parse: TextSpec) -> None:
        self._column = parse.column

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = cast_column(self._column, batch.column("value"), _TEXT)
        return _with_errors([self._column], [texts.array], texts.problems)


class _RegexParser:
    def __init__(self, parse: RegexSpec) -> None:
        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._pattern = whole_match(parse.pattern)
        try:
            pc.extract_regex(pa.array([""]), self._pattern)
        except pa.ArrowInvalid as error:
            raise DeclarationError(f"parse.pattern: RE2 refuses the pattern: {error}") from error

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = cast_column("value", batch.column("value"), _TEXT)
        matches = pc.extract_regex(values.array, self._pattern)
        problems = dict(values.problems)
        unmatched = pc.and_(matches.is_null(), values.array.is_valid())
        for row in pc.indices_nonzero(unmatched).to_pylist():
            problems[row] = "the value does not match the pattern"
        groups = self._absent_groups(values.array, _fields(matches))
        columns, problems = _cast([groups[name] for name in self._kinds], self._kinds, problems)
        return _with_errors(list(self._kinds), columns, problems)

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
    """The groups by name; NULL in rows that did not match."""
    return dict(zip((field.name for field in matches.type), matches.flatten(), strict=True))


class _JsonParser:
    def __init__(self, parse: JsonSpec) -> None:
        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._reader = JsonReader(self._kinds, parse.steps)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = cast_column("value", batch.column("value"), _TEXT)
        if values.array.null_count == 0:
            columns, problems = self._reader.read(values.array)
        else:
            columns, problems = self._with_tombstones(batch, values.array)
        columns, problems = _cast(columns, self._kinds, values.problems | problems)
        return _with_errors(list(self._kinds), columns, values.problems | problems)

    def _with_tombstones(self, batch: pa.RecordBatch, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Read columns, for records without a value from their keys. Undecodable values stay NULL."""
        with_value = pc.indices_nonzero(values.is_valid()).to_pylist()
        without = pc.indices_nonzero(values.is_null()).to_pylist()
        columns, found = self._reader.read(values.take(pa.array(with_value, pa.int64())))
        problems = {with_value[row]: reason for row, reason in found.items()}
        tombstones = batch.column("value").is_null().to_pylist()
        keys = batch.column("key").to_pylist()
        texts = [_object_text(keys[row]) if tombstones[row] else "{}" for row in without]
        from_keys, found = self._reader.read_each(texts)
        problems |= {without[row]: f"key: {reason}" for row, reason in found.items()}
        order = sorted(range(len(values)), key=(with_value + without).__getitem__)
        back = pa.array(order, pa.int64())
        return [joined(pair).take(back) for pair in zip(columns, from_keys, strict=True)], problems


def _object_text(key: bytes | None) -> str:
    """The key if it may be a JSON object, else an empty object: other keys contain no columns."""
    try:
        text = (key or b"").decode()
    except UnicodeDecodeError:
        return "{}"
    return text if text.lstrip(" \t\r\n").startswith("{") else "{}"
