"""A stream that breaks off between two batches looks whole to Arrow; only what Spark writes after it shows the end."""

import io
import struct

import pyarrow as pa
import pytest

from epochline.errors import InputCutError
from epochline.spark.source import require_whole_input

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
