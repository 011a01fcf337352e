"""Read Avro records of any schema that a registry holds."""

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import Any

import fastavro
import fastavro._read_py
import pyarrow as pa

from epochline.arrow.cast.arrays import planted
from epochline.arrow.cast.calendar import microseconds, time_number
from epochline.arrow.cast.casting import Cast, cast_elements
from epochline.arrow.cast.jsontext import MAX_DEPTH
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.reasons import DoesNotFitError
from epochline.arrow.cast.temporal import read_text
from epochline.arrow.cast.types import arrow_type
from epochline.arrow.formats import avro_values
from epochline.arrow.formats.avro_values import Logical, is_recursive
from epochline.arrow.formats.columns import WITHIN, Placeholder
from epochline.config.registry import HEADER_BYTES, Registry, UndecodableError, split_header
from epochline.declare.columns import INTEGERS, UNITS, ColumnType


class AvroReader:
    """Reads records of any schemas into columns, which `cast_column` then casts. See `epochline.declare.avro.Avro`."""

    def __init__(
        self,
        columns: Mapping[str, ColumnType],
        registry: Registry,
        unavailable: str | None = None,
        units: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._fields = [(name, kind, *_reader_of(kind, units.get(name))) for name, kind in columns.items()]
        self._registry = registry
        self._placeholder = None if unavailable is None else Placeholder(unavailable)
        self._unknown: dict[int, str] = {}
        self._recursive: dict[int, bool] = {}

    def read(self, values: pa.Array, keys: pa.Array) -> tuple[list[pa.Array], dict[int, str], dict[int, list[str]]]:
        """The columns, the reason for each unfit row, and per row the columns left out. Raises as `Registry.schema`."""
        columns: list[list[Any]] = [[] for _ in self._fields]
        problems: dict[int, str] = {}
        left_out: dict[int, list[str]] = {}
        nothing = [None] * len(self._fields)
        for row, (value, key) in enumerate(zip(values.to_pylist(), keys.to_pylist(), strict=True)):
            try:
                record = self._key(key) if value is None else self._decode(value)
                if self._placeholder is not None:
                    left_out[row] = self._without_placeholders(record, self._placeholder)
                fields = self._read_fields(record)
            except (UndecodableError, DoesNotFitError) as error:
                problems[row] = str(error)
                fields = nothing
            for column, field in zip(columns, fields, strict=True):
                column.append(field)
        arrays: list[pa.Array] = []
        for column, (name, kind, carried, read) in zip(columns, self._fields, strict=True):
            if kind.element is None:
                arrays.append(_carried(column, carried, kind))
                continue
            cast = _cast_lists(name, column, kind.element, carried, read)
            arrays.append(cast.array)
            problems = cast.problems | problems
        return arrays, problems, left_out

    def _key(self, key: bytes | None) -> dict[str, Any]:
        try:
            return self._decode(key or b"")
        except UndecodableError:
            return {}

    def _reader_for(self, schema_id: int, schema: Any, size: int) -> Callable[..., Any]:
        """The reader in C, or the one in Python where a value may be so deep that C's stack ends the process."""
        if size <= _SURELY_FLAT:
            return fastavro.schemaless_reader
        if schema_id not in self._recursive:
            self._recursive[schema_id] = is_recursive(schema)
        return fastavro._read_py.schemaless_reader if self._recursive[schema_id] else fastavro.schemaless_reader

    def _without_placeholders(self, record: dict[str, Any], placeholder: Placeholder) -> list[str]:
        placeholders = []
        for name, *_ in self._fields:
            if placeholder.stands_for(record.get(name)):
                record[name] = None
                placeholders.append(name)
            elif placeholder.lies_within(record.get(name)):
                raise DoesNotFitError(f"{name}: {WITHIN}")
        return placeholders

    def _decode(self, value: bytes) -> dict[str, Any]:
        schema_id = split_header(value)
        if schema_id in self._unknown:
            raise UndecodableError(self._unknown[schema_id])
        try:
            schema = self._registry.schema(schema_id)
        except UndecodableError as error:
            # Only this reader keeps it: the schema may be registered later.
            self._unknown[schema_id] = str(error)
            raise
        body = BytesIO(value)
        body.seek(HEADER_BYTES)
        try:
            record = self._reader_for(schema_id, schema, len(value))(body, schema, None)
        except RecursionError:
            raise UndecodableError(f"nested deeper than {MAX_DEPTH}") from None
        except Exception as error:  # fastavro raises many different errors on invalid bytes
            raise UndecodableError(f"not Avro of schema {schema_id} ({type(error).__name__})") from None
        if body.tell() != len(value):
            raise UndecodableError(f"not Avro of schema {schema_id}: {len(value) - body.tell()} bytes are left over")
        if not isinstance(record, dict):
            raise UndecodableError(f"schema {schema_id} is not of a record")
        return record

    def _read_fields(self, record: dict[str, Any]) -> list[Any]:
        fields = []
        for name, kind, _, read in self._fields:
            value = record.get(name)
            try:
                if kind.element is not None and not isinstance(value, list | None):
                    raise DoesNotFitError("not an array")
                fields.append(value if value is None or kind.element is not None else read(value))
            except DoesNotFitError as error:
                avro_type = value.kind if isinstance(value, Logical) else type(value).__name__
                raise DoesNotFitError(f"{name}: {avro_type} of Avro does not fit {kind} ({error})") from None
        return fields


_Read = Callable[[Any], Any]
_SURELY_FLAT = 500
"""Bytes. Each level takes one at least."""
_MOMENT = pa.timestamp("us", "UTC")


def _carried(values: list[Any], carried: pa.DataType, kind: ColumnType) -> pa.Array:
    array, target = pa.array(values, carried), arrow_type(kind)
    return array.cast(target) if pa.types.is_temporal(target) else array


def _cast_lists(name: str, rows: list[Any], element: ColumnType, carried: pa.DataType, read: _Read) -> Cast:
    trees: list[Any] = []
    elements: list[Any] = []
    problems: dict[int, str] = {}
    for row, value in enumerate(rows):
        try:
            trees.append(None if value is None else planted(value, elements, element, read))
        except DoesNotFitError as error:
            problems[row] = f"{name}: an element of Avro does not fit {element} ({error})"
            trees.append(None)
    cast = cast_elements(name, trees, _carried(elements, carried, element), element)
    return Cast(cast.array, cast.problems | problems)


def _reader_of(kind: ColumnType, unit: str | None = None) -> tuple[pa.DataType, _Read]:
    """The Arrow type that carries a field (or an array's elements) to the cast, and what converts a value."""
    if kind.element is not None:
        return _reader_of(kind.element)
    if unit is not None:
        carried, read = _READERS[kind.name]
        return carried, partial(_count, unit=unit, arrow=arrow_type(kind), read=read)
    if kind.name in INTEGERS:
        return pa.int64(), _integer
    if kind.name in _READERS:
        return _READERS[kind.name]
    return pa.string(), _text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DoesNotFitError("not a boolean")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DoesNotFitError("not an integer")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DoesNotFitError("not a number")
    number = float(value)
    if isinstance(value, int) and int(number) != value:
        raise DoesNotFitError("more digits than a floating-point number keeps")
    return number


def _numeral(value: Any) -> str:
    if isinstance(value, Logical) and value.kind == "decimal":
        return avro_values.decimal(value)
    if isinstance(value, dict) and set(value) == {"scale", "value"} and isinstance(value["value"], bytes):
        # As Debezium writes a decimal of a column without a fixed scale.
        return unscaled(value["value"], _integer(value["scale"]))
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise DoesNotFitError("not a number")
    return str(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, Logical) and value.kind == "duration":
        return bytes(value.value)
    if not isinstance(value, bytes):
        raise DoesNotFitError("not bytes")
    return value


def _text(value: Any) -> str:
    if isinstance(value, Logical):
        return avro_values.text(value)
    if not isinstance(value, str):
        raise DoesNotFitError("not a text")
    return value


def _time(value: Any, *, kinds: tuple[str, ...], arrow: pa.DataType, what: str) -> int:
    if isinstance(value, str):
        return read_text(value, arrow)
    if not isinstance(value, Logical) or not value.kind.startswith(kinds):
        raise DoesNotFitError(f"not a {what}")
    return avro_values.time(value, arrow)


def _count(value: Any, *, unit: str, arrow: pa.DataType, read: _Read) -> int:
    """Arrow's number of a date or a time that a plain integer counts; other values are read as without a unit."""
    if not isinstance(value, int) or isinstance(value, bool):
        return int(read(value))
    return time_number(microseconds(value, UNITS[unit]), arrow)


def _times(arrow: pa.DataType, what: str, *kinds: str) -> tuple[pa.DataType, _Read]:
    carried = pa.int32() if pa.types.is_date(arrow) else pa.int64()
    return carried, partial(_time, kinds=kinds, arrow=arrow, what=what)


def _document(value: Any) -> str:
    """A text already is JSON, as this module writes it; other values are converted."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(_plain(value, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except DoesNotFitError:
        raise
    except ValueError as error:
        raise DoesNotFitError("not JSON") from error


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise DoesNotFitError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Logical):
        return avro_values.in_document(value)
    if isinstance(value, dict):
        return {name: _plain(member, depth + 1) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(element, depth + 1) for element in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


_READERS: dict[str, tuple[pa.DataType, _Read]] = {
    "boolean": (pa.bool_(), _boolean),
    "real": (pa.float64(), _number),
    "double precision": (pa.float64(), _number),
    "numeric": (pa.string(), _numeral),
    "bytea": (pa.binary(), _bytes),
    "date": _times(pa.date32(), "date", "date"),
    "time without time zone": _times(pa.time64("us"), "time of day", "time-"),
    "timestamp with time zone": _times(_MOMENT, "timestamp", "timestamp-", "local-timestamp-"),
    "timestamp without time zone": _times(pa.timestamp("us"), "timestamp", "timestamp-", "local-timestamp-"),
    "json": (pa.string(), _document),
    "jsonb": (pa.string(), _document),
}
