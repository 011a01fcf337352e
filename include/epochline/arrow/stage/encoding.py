"""Encode record batches for COPY, in its binary or its text format."""

from collections.abc import Mapping

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq.encoders import StringEncoderBuilder
from pgpq.schema import Jsonb

from epochline.arrow.cast.arrays import literals
from epochline.arrow.cast.calendar import since_2000
from epochline.arrow.cast.csv_text import csv_rows, is_temporal
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.stage.wire import has_wire_form, wire_form
from epochline.declare.columns import Carrier
from epochline.errors import EpochlineError


class CopyEncoder:
    """Encodes the cast batches of one staging table for COPY: binary if every type has an exact encoder, else text."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._schema = record_schema(columns)
        kinds = {name: column_type(text) for name, text in columns.items()}
        self._wired = {name: kind for name, kind in kinds.items() if has_wire_form(kind)}
        self._sent = pa.schema(
            [
                (column.name, pa.binary() if column.name in self._wired else _sent_type(column.type))
                for column in self._schema
            ]
        )
        self._arrays = {name: kind for name, kind in kinds.items() if kind.element is not None}
        carriers = {kind.carrier for kind in kinds.values()}
        self._documents = {name for name, kind in kinds.items() if kind.name == "jsonb"}
        self.carrier = Carrier.BINARY if carriers <= {Carrier.BINARY} else Carrier.TEXT
        self._binary: ArrowToPostgresBinaryEncoder | None = None

    @property
    def copy_options(self) -> str:
        """The options of ``COPY … FROM STDIN WITH (…)``."""
        if self.carrier is Carrier.BINARY:
            return "FORMAT binary, ENCODING 'UTF8'"
        return "FORMAT csv, ENCODING 'UTF8'"

    def begin(self) -> bytes:
        """The bytes before the first batch. Calling it again starts over."""
        if self.carrier is Carrier.TEXT:
            return b""
        encoders = {
            field.name: StringEncoderBuilder.new_with_output(field, Jsonb())
            if field.name in self._documents
            else ArrowToPostgresBinaryEncoder.infer_encoder(field)
            for field in self._sent
        }
        self._binary = ArrowToPostgresBinaryEncoder.new_with_encoders(self._sent, encoders)
        header: bytes = self._binary.write_header()
        return header

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """The rows of a batch; raises `EpochlineError` for a schema other than the table's, or before `begin`."""
        if not batch.schema.equals(self._schema):
            raise EpochlineError(
                f"a batch with schema ({batch.schema.to_string()}) does not match ({self._schema.to_string()})"
            )
        if batch.num_rows == 0:
            return b""
        if self.carrier is Carrier.TEXT:
            return csv_rows(self._with_literals(batch))
        if self._binary is None:
            raise EpochlineError("encode was called before begin")
        columns = [
            wire_form(column, self._wired[name]) if name in self._wired
            else since_2000(column) if is_temporal(column.type) else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]  # fmt: skip
        rows: bytes = self._binary.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._sent))
        return rows

    def _with_literals(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._arrays:
            return batch
        columns = [
            literals(column, self._arrays[name]) if name in self._arrays else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def end(self) -> bytes:
        """The bytes after the last batch."""
        if self._binary is None:
            return b""
        trailer: bytes = self._binary.finish()
        self._binary = None
        return trailer


def _sent_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column is encoded from: an integer for dates and times, as PostgreSQL keeps them."""
    if not is_temporal(kind):
        return kind
    return pa.int32() if pa.types.is_date(kind) else pa.int64()
