"""Parses Debezium's change events of a table ``orders``, as JSON with or without the converter's schema.

PostgreSQL does not log a large value that an update leaves as it is. Debezium sends a placeholder for it. The parse
names the column in ``_unavailable``, and the target keeps its value.
"""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

_COLUMNS = {
    "id": pa.int64(),
    "customer": pa.string(),
    "amount": pa.string(),
    "status": pa.string(),
    "placed_at": pa.string(),
    "source_file": pa.int64(),
    "source_position": pa.int64(),
    "_unavailable": pa.list_(pa.string()),
    "_deleted": pa.bool_(),
    "_skip": pa.bool_(),
    "_error": pa.string(),
}
_UNAVAILABLE = "__debezium_unavailable_value"
"""The connector's setting ``unavailable.value.placeholder``."""

_UPSERTS = ("c", "r", "u")
"""Created, read by a snapshot, updated. ``d`` is a deletion; a truncation of the table is not supported."""


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Turn each change event into the row that it leaves, or into a deletion of its key.

    The tombstone after a deletion is skipped: it has no position in the source's log, and adds nothing to the deletion.
    """
    rows = [_row(key, value) for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)]
    columns = [pa.array([row.get(name) for row in rows], kind) for name, kind in _COLUMNS.items()]
    return pa.RecordBatch.from_arrays(columns, names=list(_COLUMNS))


def _row(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"_skip": True}
    try:
        return _change(_payload(value), key)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return {"_error": f"is not a change of an order ({type(error).__name__})"}


def _change(event: dict[str, Any], key: bytes | None) -> dict[str, Any]:
    operation = event["op"]
    if operation == "d":
        row: dict[str, Any] = {"id": _integer((event.get("before") or _payload(key or b""))["id"]), "_deleted": True}
    elif operation in _UPSERTS:
        after = event["after"]
        unavailable = [name for name, value in after.items() if value == _UNAVAILABLE]
        after |= dict.fromkeys(unavailable)
        amount = after["amount"]
        row = {name: _text(after[name]) for name in ("customer", "status", "placed_at")}
        row |= {"id": _integer(after["id"]), "amount": None if amount is None else str(Decimal(amount))}
        row["_unavailable"] = unavailable
    else:
        return {"_error": "has an operation other than c, r, u and d"}
    return row | _position(event["source"])


def _position(source: dict[str, Any]) -> dict[str, int]:
    """The position of a change: PostgreSQL's log has one growing number, MySQL's starts over in each file.

    The time of a change gives no order: many changes share it, and a snapshot's rows carry the time of their read.
    """
    if source.get("lsn") is not None:
        return {"source_file": 0, "source_position": _integer(source["lsn"])}
    # Compared as a number: after binlog.999999 comes binlog.1000000.
    name, _, number = source["file"].rpartition(".")
    if not (name and number.isascii() and number.isdecimal()):
        raise ValueError("not a file of MySQL's log")
    return {"source_file": _integer(int(number)), "source_position": _integer(source["pos"])}


def _payload(document: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(document, parse_float=Decimal)
    if "payload" in read and "schema" in read:
        read = read["payload"]
    return read


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError("not an integer of 64 bits")
    return value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError("not a string")
    value.encode()  # raises for half a surrogate pair
    return value
