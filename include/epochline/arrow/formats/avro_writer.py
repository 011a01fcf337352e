"""Write rows as Avro records of one schema, which a registry holds."""

import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import only_postgres, outside_years
from epochline.arrow.formats.texts import as_text
from epochline.config.registry import Registry, with_header
from epochline.declare.columns import ColumnType
from epochline.declare.specs import AvroSpec


class AvroWriter:
    """Writes rows as Avro records of one schema, which it registers first. ``topic`` is the default name of both."""

    def __init__(self, spec: AvroSpec, kinds: Mapping[str, ColumnType], topic: str, registry: Registry) -> None:
        self._kinds = {name: kinds[name] for name in spec.columns}
        self._subject = spec.subject or f"{topic}-value"
        self._schema = dict(spec.schema) if spec.schema else derived_schema(self._kinds, topic)
        self._registry = registry
        self._parsed = fastavro.parse_schema(self._schema)

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One value per row, and the reason for each row that does not fit the schema.

        Raises as `Registry.register`.
        """
        if not rows.num_rows:
            return pa.array([], pa.binary()), {}
        schema_id = self._registry.register(self._subject, self._schema)
        problems: dict[int, str] = {}
        columns = [self._values(rows.column(name), name, kind, problems) for name, kind in self._kinds.items()]
        values: list[bytes | None] = []
        for row, record in enumerate(zip(*columns, strict=True)):
            body = BytesIO()
            try:
                fastavro.schemaless_writer(body, self._parsed, dict(zip(self._kinds, record, strict=True)))
            except Exception as error:  # any error, because the user wrote the schema; its text would show values
                problems.setdefault(row, f"does not fit the Avro schema of {self._subject} ({type(error).__name__})")
            values.append(None if row in problems else with_header(schema_id, body.getvalue()))
        return pa.array(values, pa.binary()), problems

    def _values(self, column: pa.Array, name: str, kind: ColumnType, problems: dict[int, str]) -> list[Any]:
        if pa.types.is_temporal(column.type):
            is_time = pa.types.is_time(column.type)
            outside = only_postgres(column) if is_time else outside_years(column)
            limit = "times before 24:00:00" if is_time else "the years 1 to 9999"
            for row in outside:
                problems.setdefault(row, f"{name}: Avro is only written for {limit}")
            if outside:
                left_out = pa.array([row in problems for row in range(len(column))])
                column = pc.if_else(left_out, pa.scalar(None, column.type), column)
            if pa.types.is_timestamp(column.type):
                # fastavro reads a time without a zone as local time of this machine.
                column = column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        elif pa.types.is_string(column.type):
            column = as_text(column, kind)
        return list(column.to_pylist())


_AVRO: dict[str, Any] = {
    "boolean": "boolean",
    "smallint": "int",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "double precision": "double",
    "bytea": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time without time zone": {"type": "long", "logicalType": "time-micros"},
    "timestamp with time zone": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp without time zone": {"type": "long", "logicalType": "local-timestamp-micros"},
    "uuid": {"type": "string", "logicalType": "uuid"},
}


def derived_schema(columns: Mapping[str, ColumnType], topic: str) -> dict[str, Any]:
    """The Avro schema of columns: a record named after the topic, with nullable fields."""
    fields = [{"name": name, "type": ["null", _avro_type(kind)], "default": None} for name, kind in columns.items()]
    name = re.sub("[^A-Za-z0-9_]", "_", topic)
    return {"type": "record", "name": name if not name[0].isdigit() else f"_{name}", "fields": fields}


def _avro_type(kind: ColumnType) -> Any:
    if kind.name == "numeric" and kind.precision is not None:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale or 0}
    return _AVRO.get(kind.name, "string")
