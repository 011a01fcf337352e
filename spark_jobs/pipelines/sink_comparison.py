"""Parses tuples of three keys and a number, each with an id that a repeated read reproduces."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_KEYS = ("key1", "key2", "key3")


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse ``{"key1": …, "key2": …, "key3": …, "indicate": 1}``; add the time and an id from the place."""
    rows: list[Sequence[Any]] = []
    errors: list[str | None] = []
    for value in batch.column("value").to_pylist():
        try:
            read = json.loads(value or b"")
            rows.append((*(_text(read[key]) for key in _KEYS), _integer(read["indicate"])))
            errors.append(None)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            rows.append((None,) * 4)
            errors.append(f"is not a tuple of three keys and a number ({type(error).__name__})")
    places = zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    columns = {
        "uuid": pa.array([str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(map(str, place)))) for place in places]),
        "slot_time": batch.column("timestamp"),
        **{key: pa.array([row[at] for row in rows], pa.string()) for at, key in enumerate(_KEYS)},
        "indicate": pa.array([row[-1] for row in rows], pa.int64()),
        "_error": pa.array(errors, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError("not an integer of 64 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    value.encode()  # raises for half a surrogate pair
    return value
