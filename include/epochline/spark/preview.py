"""What a transform makes of parsed rows, checked as an epoch checks it. Nothing is read or written elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.declare.functions import load_function
from epochline.declare.pipeline import Pipeline
from epochline.protocol.staging_tables import staged_external, staged_tables
from epochline.spark.functions import pickle_by_value, ship_functions
from epochline.spark.parse_frame import as_parsed, frame_schema, parsed_rows, spark_schema
from epochline.spark.sink_frames import SinkFlowFactory, staged_frame
from epochline.spark.stage_frames import frames_of_transform


def transformed(
    spark: SparkSession, pipeline: Pipeline, parsed: Sequence[pa.RecordBatch], most: int
) -> Mapping[str, list[dict[str, Any]]]:
    """Run the pipeline's transform over parsed rows, with empty state tables.

    Args:
        spark: a session.
        pipeline: the declaration, which has a transform and one source.
        parsed: batches of `epochline.arrow.stage.preview.ParsedRecords`.
        most: rows of each sink that are computed.

    Returns:
        By sink, rows with the columns that would be staged. A sink whose columns the target alone knows is left out.

    Raises:
        DeclarationError: the transform did not return the declared DataFrames, or one lacks a column.
        EpochlineError: a value does not fit its column.
    """
    spec, schema, reference = pipeline.spec, frame_schema(pipeline.spec), pipeline.transform or ""
    load_function(reference)
    pickle_by_value(reference.partition(":")[0])
    table = pa.Table.from_batches([as_parsed(schema, one) for one in parsed], schema=schema)
    given = parsed_rows(spark.createDataFrame(table), spec)
    states = {
        one.table: spark.createDataFrame([], from_arrow_schema(spark_schema(one.columns or {})))
        for one in pipeline.state
    }
    frames = frames_of_transform(pipeline, given, states)
    known = {sink.table: sink.columns or {} for sink in pipeline.tables}
    staged = {one.sink: one for one in (*staged_tables(pipeline, known, 0, 0), *staged_external(pipeline))}
    rows: dict[str, list[dict[str, Any]]] = {}
    for sink in spec.sinks:
        if known.get(sink.table, True):
            one, ships = staged[sink.table], ship_functions(spec)
            flow = SinkFlowFactory(pipeline=spec, sink=sink, tables=(one,), functions=ships).make()
            found = staged_frame(sink, one, frames[sink.table]).limit(most).toArrow()
            batches = [flow.process(batch) for batch in found.to_batches()] + [flow.finish()]
            rows[str(sink)] = [row for batch in batches for some in batch.values() for row in some.to_pylist()]
    return rows
