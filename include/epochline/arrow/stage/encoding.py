"""From record batches to the bytes of COPY. One place decides between its binary and its text format."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.csv
from pgpq import ArrowToPostgresBinaryEncoder

from epochline.arrow.cast.buffers import hexadecimal
from epochline.arrow.cast.calendar import spelled_out
from epochline.arrow.cast.types import column_type, record_schema
from epochline.declare.columns import Carrier
from epochline.errors import EpochlineError


class CopyEncoder:
    """Encodes the batches of one staging table for ``COPY … FROM STDIN``.

    Binary where every column's type has an exact binary encoder, else text, in which the server parses each
    value. Batches must be cast already (`epochline.arrow.cast.casting`): here nothing is checked but the schema.

    Args:
        columns: names and PostgreSQL types of the staging table, in order.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._schema = record_schema(columns)
        carriers = {column_type(text).carrier for text in columns.values()}
        self.carrier = Carrier.BINARY if carriers <= {Carrier.BINARY} else Carrier.TEXT
        self._binary: ArrowToPostgresBinaryEncoder | None = None

    @property
    def copy_options(self) -> str:
        """What stands in the parentheses of ``COPY … FROM STDIN WITH (…)``."""
        if self.carrier is Carrier.BINARY:
            return "FORMAT binary, ENCODING 'UTF8'"
        return "FORMAT csv, ENCODING 'UTF8'"

    def begin(self) -> bytes:
        """What comes before the first batch. Begins anew if called again."""
        if self.carrier is Carrier.TEXT:
            return b""
        self._binary = ArrowToPostgresBinaryEncoder(self._schema)
        header: bytes = self._binary.write_header()
        return header

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """The rows of a batch.

        Raises:
            EpochlineError: the batch has not the columns of the staging table.
        """
        if not batch.schema.equals(self._schema):
            raise EpochlineError(
                f"a batch of ({batch.schema.to_string()}) was to be copied into ({self._schema.to_string()})"
            )
        if batch.num_rows == 0:
            return b""
        if self.carrier is Carrier.TEXT:
            return csv_rows(batch)
        if self._binary is None:
            raise EpochlineError("encode was called before begin")
        rows: bytes = self._binary.write_batch(batch)
        return rows

    def end(self) -> bytes:
        """What comes after the last batch."""
        if self._binary is None:
            return b""
        trailer: bytes = self._binary.finish()
        self._binary = None
        return trailer


# Every text is quoted and NULL is not, so that COPY tells NULL from the empty text.
_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=65536)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch as COPY reads them with ``FORMAT csv``; a batch without rows gives nothing."""
    columns = [_readable(column) for column in batch.columns]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), sink, _CSV)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _readable(column: pa.Array) -> pa.Array:
    """The column as Arrow writes it and PostgreSQL reads it."""
    if pa.types.is_binary(column.type):
        return hexadecimal(column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return spelled_out(column)
    return column
