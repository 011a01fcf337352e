"""Parses one number per record, in three forms: ``15``, ``"15"`` or ``{"value":"15"}``."""

import json
import re

import pyarrow as pa

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse the number to text; anything else is a bad record."""
    numbers = [_number(value) for value in batch.column("value").to_pylist()]
    error = 'is not a number, neither bare nor quoted nor as {"value": …}'
    errors = [error if number is None else None for number in numbers]
    columns = [pa.array(numbers, pa.string()), pa.array(errors, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["value", "_error"])


def _number(value: bytes | None) -> str | None:
    try:
        read = json.loads(value or b"")
    except ValueError:
        return None
    if isinstance(read, dict):
        read = read.get("value")
    if isinstance(read, bool) or not isinstance(read, int | str):
        return None
    text = str(read).strip()
    return str(int(text)) if _NUMBER.fullmatch(text) else None
