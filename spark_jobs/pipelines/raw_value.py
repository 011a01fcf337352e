"""Parses one number per record, in three forms: ``15``, ``"15"`` or ``{"value":"15"}``."""

import json
import re

import pyarrow as pa

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse the number to text; anything else is a bad record."""
    return _parsed(batch, frozenset())


def parse_all_but_15(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Like `parse`, but refuses 15: a fix for that record that leaves the topic unchanged."""
    return _parsed(batch, frozenset({"15"}))


def _parsed(batch: pa.RecordBatch, refused: frozenset[str]) -> pa.RecordBatch:
    values, errors = [], []
    for one in batch.column("value"):
        number = _number(one.as_py())
        error = 'is not a number, neither bare nor quoted nor as {"value": …}' if number is None else None
        if number in refused:
            error = f"{number} is set aside"
        values.append(None if error else number)
        errors.append(error)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(errors, pa.string())], names=["value", "_error"]
    )


def _number(value: bytes | None) -> str | None:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    if isinstance(found, dict):
        found = found.get("value")
    if isinstance(found, bool) or not isinstance(found, int | str):
        return None
    text = str(found).strip()
    return str(int(text)) if _NUMBER.fullmatch(text) else None
