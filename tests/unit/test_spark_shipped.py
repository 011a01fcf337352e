"""What the driver ships to Spark's workers is read there without the libraries of declarations and of Avro."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from epochline import (
    Bytes,
    EventTime,
    Files,
    Json,
    KafkaSource,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Regex,
    StateTable,
    Text,
    Tumbling,
    Windowed,
)  # fmt: skip
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables
from epochline.spark.functions import ship_functions
from epochline.spark.part_rows import ParseTask, one_pass_writer, sink_writer
from epochline.spark.staging import StagingWriter
from epochline.spark.state import StateReader, WindowReader

COLUMNS = {"who": "text", "n": "bigint"}
HITS = {"who": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}
ROWS = PostgresTable(table="rows", columns=COLUMNS)
Shipped = Callable[[str], list[object]]
"""Makes what the driver of a pipeline ships; the argument is a folder that the pipeline may write to."""

NEEDLESS = {"airflow", "alembic", "confluent_kafka", "fastavro", "kafka", "pydantic", "re2", "sqlalchemy"}

READ = """
import pickle, sys
import pyarrow as pa
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.cast.batches import SOURCE_SCHEMA
from epochline.sinks import external_sink
from epochline.spark.part_rows import OnePassRows, ParseTask
from epochline.spark.staging import StagingWriter

values = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestamp_type": 0, "value": b"a 1"}
records = pa.RecordBatch.from_pylist([values], schema=SOURCE_SCHEMA)
for one in pickle.load(sys.stdin.buffer):
    if isinstance(one, ParseTask):
        one.functions.install()
        BatchRows(one.pipeline, one.ticket.tables).parse_only(records)
    if isinstance(one, StagingWriter):
        one.functions.install()
        rows = one.rows()
        for sink in one.external:
            external_sink(sink)
        if isinstance(rows, OnePassRows):
            rows.process(records)
            rows.finish()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def pipeline(*sinks: Any, **declared: Any) -> Pipeline:
    declared = {"parse": Json(columns={**COLUMNS, "at": "timestamptz"})} | declared
    return Pipeline(name="p", source=KafkaSource(topics="t"), sinks=sinks, bad_records="quarantine", **declared)


def ticket(declared: Pipeline) -> StagingTicket:
    tables = staged_tables(declared, {sink.table: sink.columns or {} for sink in declared.tables}, 1, 1)
    return StagingTicket(
        pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name="a", tables=tables,
        external=staged_external(declared),
    )  # fmt: skip


def one_pass(folder: str, **declared: Any) -> list[object]:
    whole = pipeline(
        ROWS,
        PostgresTable(table="sums", mode="add", columns=COLUMNS, key="who", measures="n"),
        PostgresTable(table="latest", mode="upsert", columns=COLUMNS, key="who", order_by="n", tombstone="ignore"),
        KafkaTopic(topic="json", value=Json(columns=COLUMNS), key=("who", "n"), order_by="n"),
        KafkaTopic(topic="text", value=Text(column="who"), headers={"h": "who"}),
        Files(path=folder, columns=COLUMNS),
        **declared,
    )
    return [writer(whole)]


def writer(declared: Pipeline) -> StagingWriter:
    return one_pass_writer(declared.spec, ticket(declared), "")


def by_regex(folder: str) -> list[object]:
    return one_pass(folder, parse=Regex(pattern=r"(?P<who>\w+) (?P<n>\d+)", columns={"n": "bigint"}))


def bytes_alone(folder: str) -> list[object]:
    sinks = (PostgresTable(table="raw", columns={"value": "bytea"}), KafkaTopic(topic="raw", value=Bytes()))
    return [writer(pipeline(*sinks, parse=Bytes()))]


def by_windows(folder: str) -> list[object]:
    time, window = EventTime(column="at"), Tumbling(size=timedelta(seconds=5))
    windows = Windowed(time=time, window=window, key="who", aggregates={"hits": "count(*)"}, into="hits")
    declared = pipeline(
        PostgresTable(table="hits", mode="upsert", key=("who", "window_start"), columns=HITS, aggregated=True),
        windows=windows,
    )
    (state,) = declared.states
    return [*of_a_transform(declared), WindowReader.of(ticket(declared), state, "", lateness=timedelta(0))]


def with_state(folder: str) -> list[object]:
    state = StateTable(table="seen", key="who", columns=COLUMNS)
    declared = pipeline(ROWS).model_copy(update={"transform": "not_shipped:transform", "state": (state,)})
    return [*of_a_transform(declared), StateReader.of(ticket(declared), state, "")]


def of_a_transform(declared: Pipeline) -> list[object]:
    one, spec, functions = ticket(declared), declared.spec, ship_functions(declared.spec)
    writers = [sink_writer(spec, sink, one, "", functions) for sink in spec.sinks]
    return [ParseTask(pipeline=spec, ticket=one, functions=functions, dsn=""), *writers]


@pytest.mark.parametrize("shipped", [one_pass, by_regex, bytes_alone, by_windows, with_state])
def test_a_worker_reads_what_it_is_shipped_without_a_declaration(shipped: Shipped, tmp_path: Path) -> None:
    given = cloudpickle.dumps(shipped(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", READ], input=given, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr.decode()
    loaded = done.stdout.decode().split()
    assert "epochline" in loaded
    assert NEEDLESS.intersection(loaded) == set()
