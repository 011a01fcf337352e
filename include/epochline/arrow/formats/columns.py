"""What ready-made parsers share: texts of values, a schema registry's framing, cast columns and reasons.

Framing is a zero byte and a schema's id before the body.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import Cast, cast_column
from epochline.arrow.cast.contract import ERROR
from epochline.config.registry import HEADER_BYTES
from epochline.declare.columns import UNAVAILABLE, ColumnType, parse_type

_TEXT = parse_type("text")
_WHITE = b" \t\r\n"


def texts_of(name: str, values: pa.Array) -> Cast:
    """The values as texts; the reason of a framed record says what it is and what to declare."""
    texts = cast_column(name, values, _TEXT)
    for row in texts.problems:
        value = values[row].as_py()
        if value[:1] == b"\0" and len(value) > HEADER_BYTES:
            texts.problems[row] = _reason(int.from_bytes(value[1:HEADER_BYTES]), value[HEADER_BYTES:])
    return texts


def _reason(schema_id: int, body: bytes) -> str:
    framing = f"is in a schema registry's framing (a zero byte and the schema id {schema_id} stand before the body)"
    if body.lstrip(_WHITE)[:1] in (b"{", b"["):
        return f"{framing}, and the body looks like JSON; declare parse=Json(columns=…, framed=True)"
    return f"{framing}, and the body is no JSON; declare parse=Avro(columns=…) if it is Avro"


def unframed(values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """The bodies of framed values, and the reason for each value that is not framed. NULL stays NULL."""
    framed = pc.and_(pc.starts_with(values, b"\0"), pc.greater(pc.binary_length(values), HEADER_BYTES))
    plain = pc.indices_nonzero(pc.invert(framed)).to_pylist()
    # Arrow cannot slice a value that is shorter than the header.
    given: list[Any] = values.to_pylist()
    bodies = [
        value[HEADER_BYTES:] if is_framed else None for value, is_framed in zip(given, framed.to_pylist(), strict=True)
    ]
    return pa.array(bodies, pa.binary()), dict.fromkeys(
        plain, "has no schema registry's framing, which framed=True expects"
    )


def body_of(key: bytes | None) -> bytes:
    """A key without its framing if it has one."""
    key = key or b""
    return key[HEADER_BYTES:] if key[:1] == b"\0" else key


def cast_batch(
    kinds: Mapping[str, ColumnType],
    columns: Sequence[pa.Array],
    problems: Mapping[int, str],
    left_out: Mapping[int, Sequence[str]] | None = None,
) -> pa.RecordBatch:
    """The columns cast to their types, as `parsed_batch`. A row keeps its first problem."""
    arrays: dict[str, pa.Array] = {}
    for column, (name, kind) in zip(columns, kinds.items(), strict=True):
        cast = cast_column(name, column, kind)
        arrays[name] = cast.array
        problems = {**cast.problems, **problems}
    return parsed_batch(arrays, problems, left_out)


def parsed_batch(
    columns: Mapping[str, pa.Array],
    problems: Mapping[int, str],
    left_out: Mapping[int, Sequence[str]] | None = None,
) -> pa.RecordBatch:
    """The columns, ``_error``, and ``_unavailable`` if ``left_out`` names columns that a record does not give."""
    arrays = dict(columns)
    rows = len(next(iter(arrays.values())))
    arrays[ERROR] = pa.nulls(rows, pa.string())
    if problems:
        arrays[ERROR] = pa.array([problems.get(row) for row in range(rows)], pa.string())
    if left_out is not None:
        arrays[UNAVAILABLE] = pa.array([left_out.get(row) or None for row in range(rows)], pa.list_(pa.string()))
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
