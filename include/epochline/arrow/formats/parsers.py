"""Build the function that parses a pipeline's record batches: a ready-made one or the user's."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.contract import BatchFunction, call, require_columns
from epochline.arrow.cast.reasons import any_true
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.columns import cast_batch, parsed_batch, texts_of
from epochline.arrow.formats.json_records import JsonParser
from epochline.config.registry import registry
from epochline.declare.patterns import whole_match
from epochline.declare.specs import AvroSpec, JsonSpec, PipelineSpec, RegexSpec, TextSpec, load_function
from epochline.errors import DeclarationError


def build_parser(pipeline: PipelineSpec) -> BatchFunction:
    """The function that parses this pipeline's source batches, one row per input row, with ``_error`` and ``_skip``.

    Raises `DeclarationError` if a function cannot be imported, or Arrow's RE2 refuses the pattern.
    """
    parse = pipeline.parse
    if isinstance(parse, str):
        return _user_function(pipeline, parse, load_function(parse))
    if isinstance(parse, JsonSpec):
        return JsonParser(parse)
    if isinstance(parse, AvroSpec):
        return _avro_parser(parse)
    if isinstance(parse, RegexSpec):
        return _RegexParser(parse)
    return partial(_texts if isinstance(parse, TextSpec) else _bytes, parse.column)


def _user_function(pipeline: PipelineSpec, reference: str, function: BatchFunction) -> BatchFunction:
    what = f"parse {reference}"
    wanted = [name for name in pipeline.parsed_columns if pipeline.explode is None]

    def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
        given = call(what, function, batch)
        require_columns(what, given, wanted)
        return given

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
        groups = self._absent_groups(values.array, _fields(matches))
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
