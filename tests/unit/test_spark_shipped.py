"""What is shipped to a worker of Spark is all that it needs, and a stream that breaks off is not taken for a whole one."""

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from epochline import (
    Bytes,
    EventTime,
    Files,
    Json,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Regex,
    StateTable,
    Text,
    Tumbling,
    Windowed,
)
from epochline.declare import version
from epochline.declare.version import VERSION
from epochline.errors import InputCutError, VersionError
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables
from epochline.spark.functions import of_this_version, ship_functions
from epochline.spark.part_rows import ParseTask, one_pass_writer, sink_writer
from epochline.spark.source import require_whole_input
from epochline.spark.staging import StagingWriter
from epochline.spark.state import StateReader, WindowReader
from tests.declaring import pipeline

END_OF_STREAM = struct.pack("!i", -4)
SCHEMA = pa.schema([("value", pa.int64())])


def stream(batches: int, *, ended: bool) -> bytes:
    """What an executor writes to its Python worker: batches, and at the end Arrow's mark."""
    sink = io.BytesIO()
    writer = pa.ipc.new_stream(sink, SCHEMA)
    for number in range(batches):
        writer.write_batch(pa.record_batch([[number]], schema=SCHEMA))
    if ended:
        writer.close()
    return sink.getvalue()


def main(data: bytes, outfile: None = None) -> int:
    """As pyspark's worker, whose frame is found by these names: it alone holds the stream, and reads its end mark."""
    infile = io.BufferedReader(io.BytesIO(data))
    rows: int = sum(batch.num_rows for batch in pa.ipc.open_stream(infile))
    require_whole_input("the attempt")
    return rows


def test_an_input_that_was_ended_by_spark_is_whole() -> None:
    assert main(stream(3, ended=True) + END_OF_STREAM) == 3


@pytest.mark.parametrize("ended", [False, True], ids=["between two batches", "before Spark's end mark"])
def test_an_input_that_broke_off_is_refused_though_arrow_reads_it_to_its_end(ended: bool) -> None:
    """I4: a part of it would stand, and Spark's next try of the task would be refused as another one."""
    cut = stream(2, ended=ended)
    assert sum(batch.num_rows for batch in pa.ipc.open_stream(io.BytesIO(cut))) == 2

    with pytest.raises(InputCutError, match="broke off before the last record") as refused:
        main(cut)

    assert refused.value.retryable


def test_outside_a_worker_there_is_nothing_to_ask() -> None:
    require_whole_input("the attempt")


@pytest.mark.fault("F56")
def test_a_worker_with_another_version_refuses_before_it_makes_an_object_of_the_drivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-4: values that another version pickled would be put into other fields."""
    shipped = cloudpickle.dumps(of_this_version(_Made()))
    assert cloudpickle.loads(shipped)(1) == 2

    monkeypatch.setattr(version, "VERSION", "9.0.0")
    made = len(_Made.made)
    with pytest.raises(VersionError, match=f"has epochline {VERSION}, and a Python worker of Spark has 9\\.0\\.0"):
        cloudpickle.loads(shipped)(1)

    assert len(_Made.made) == made


class _Made:
    """A function whose every reading from a pickle is noted."""

    made: ClassVar[list[object]] = []

    def __setstate__(self, state: object) -> None:
        self.made.append(state)

    def __getstate__(self) -> object:
        return "state"

    def __call__(self, number: int) -> int:
        return number + 1


COLUMNS = {"who": "text", "n": "bigint"}
HITS = {"who": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}
ROWS = PostgresTable(table="rows", columns=COLUMNS)
Shipped = Callable[[str], list[object]]
"""Makes what the driver of a shipped_pipeline ships; the argument is a folder that the shipped_pipeline may write to."""

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


def shipped_pipeline(*sinks: Any, **declared: Any) -> Pipeline:
    parse = Json(columns={**COLUMNS, "at": "timestamptz"})
    return pipeline(*sinks, **{"parse": parse, "bad_records": "quarantine"} | declared)


def ticket(declared: Pipeline) -> StagingTicket:
    tables = staged_tables(declared, {sink.table: sink.columns or {} for sink in declared.tables}, 1, 1)
    return StagingTicket(
        pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name="a", tables=tables,
        external=staged_external(declared),
    )  # fmt: skip


def one_pass(folder: str, **declared: Any) -> list[object]:
    whole = shipped_pipeline(
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
    return [writer(shipped_pipeline(*sinks, parse=Bytes()))]


def by_windows(folder: str) -> list[object]:
    time, window = EventTime(column="at"), Tumbling(size=timedelta(seconds=5))
    windows = Windowed(time=time, window=window, key="who", aggregates={"hits": "count(*)"}, into="hits")
    declared = shipped_pipeline(
        PostgresTable(table="hits", mode="upsert", key=("who", "window_start"), columns=HITS, aggregated=True),
        windows=windows,
    )
    (state,) = declared.states
    return [*of_a_transform(declared), WindowReader.of(ticket(declared), state, "", lateness=timedelta(0))]


def with_state(folder: str) -> list[object]:
    state = StateTable(table="seen", key="who", columns=COLUMNS)
    declared = shipped_pipeline(ROWS).model_copy(update={"transform": "not_shipped:transform", "state": (state,)})
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
