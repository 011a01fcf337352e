"""A function that makes a topic's records: little-endian numbers as values (N4)."""

import struct

import pyarrow as pa


def packed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The id as four bytes, a key of text, two headers; thirteen is an error."""
    ids, topics = rows.column("id").to_pylist(), rows.column("to").to_pylist()
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = [[{"key": "to", "value": (to or "").encode()}, {"key": "none", "value": None}] for to in topics]
    return pa.record_batch(
        {
            "key": pa.array([f"order {one}".encode() for one in ids], pa.binary()),
            "value": pa.array([struct.pack("<i", one) for one in ids], pa.binary()),
            "headers": pa.array(given, headers),
            "_error": ["thirteen is not sent" if one == 13 else None for one in ids],
        }
    )


def misspelt(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Headers under a name that no record has."""
    return pa.record_batch({"value": pa.nulls(rows.num_rows, pa.binary()), "headrs": pa.nulls(rows.num_rows)})


def keyless(rows: pa.RecordBatch) -> pa.RecordBatch:
    """No value at all."""
    return pa.record_batch({"key": pa.nulls(rows.num_rows, pa.binary())})


def counted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Numbers where bytes belong."""
    return pa.record_batch({"value": rows.column("id")})


def nameless(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A header without a name, in the first row only."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [[{"key": None if row == 0 else "h", "value": b""}] for row in range(rows.num_rows)]
    return pa.record_batch({"value": ["x"] * rows.num_rows, "headers": pa.array(pairs, headers)})
