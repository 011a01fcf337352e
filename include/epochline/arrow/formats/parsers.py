"""Build the function that parses a pipeline's record batches: a ready-made one or the user's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.checks import any_true
from epochline.arrow.cast.contract import BatchFunction, call, require_columns
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.columns import cast_all, with_errors, with_left_out
from epochline.arrow.formats.framing import texts_of
from epochline.arrow.formats.json_records import JsonParser
from epochline.config.registry import registry
from epochline.declare.functions import load_function
from epochline.declare.patterns import whole_match
from epochline.declare.specs import AvroSpec, BytesSpec, JsonSpec, PipelineSpec, RegexSpec, TextSpec
from epochline.errors import DeclarationError


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
        return JsonParser(parse)
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


class _AvroParser:
    def __init__(self, parse: AvroSpec) -> None:
        # Loads fastavro.
        from epochline.arrow.formats.avro import AvroReader

        self._kinds = {name: column_type(text) for name, text in parse.columns.items()}
        self._names_left_out = parse.unavailable is not None
        self._reader = AvroReader(self._kinds, registry(parse.registry), parse.unavailable, parse.units)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, problems, left_out = self._reader.read(batch.column("value"), batch.column("key"))
        columns, problems = cast_all(columns, self._kinds, problems)
        parsed = with_errors(list(self._kinds), columns, problems)
        return with_left_out(parsed, left_out) if self._names_left_out else parsed


class _BytesParser:
    def __init__(self, parse: BytesSpec) -> None:
        self._column = parse.column

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_errors([self._column], [batch.column("value")], {})


class _TextParser:
    def __init__(self, parse: TextSpec) -> None:
        self._column = parse.column

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = texts_of(self._column, batch.column("value"))
        return with_errors([self._column], [texts.array], texts.problems)


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
        groups = self._absent_groups(values.array, _fields(matches))
        columns, problems = cast_all([groups[name] for name in self._kinds], self._kinds, problems)
        return with_errors(list(self._kinds), columns, problems)

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
