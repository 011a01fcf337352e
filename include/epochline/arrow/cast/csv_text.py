"""The rows of a batch as CSV, for COPY and for files."""

import pyarrow as pa
import pyarrow.csv

from epochline.arrow.cast.calendar import spelled_out
from epochline.arrow.cast.types import hexadecimal

# Texts are quoted and NULL is not, so that COPY distinguishes NULL from an empty text.
_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=65536)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch for COPY with ``FORMAT csv``; a batch without rows gives no bytes."""
    columns = [_readable(column) for column in batch.columns]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), sink, _CSV)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _readable(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return hexadecimal(column)
    if is_temporal(column.type):
        return spelled_out(column)
    return column


def is_temporal(kind: pa.DataType) -> bool:
    """Whether a type is a date, a time or a timestamp."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))
