"""A parse that takes its time: two seconds for each batch."""

import time

import pyarrow as pa
import pyarrow.compute as pc

RECORD = {"value": "text"}


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(2)
    return pa.RecordBatch.from_arrays([pc.cast(batch.column("value"), pa.string())], names=["value"])
