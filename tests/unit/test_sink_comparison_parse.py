"""The tuples of the sink comparison, and the id that each is given."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa

from pipelines.sink_comparison import parse
from tests.reading import source_batch
from tests.unit.partitions import tp

TIME = datetime(2026, 3, 1, tzinfo=UTC)


def batch(*values: bytes | None, first: int = 0) -> pa.RecordBatch:
    return source_batch(tp(1), range(first, first + len(values)), values, timestamp=[TIME] * len(values))


def line(number: int) -> bytes:
    return json.dumps({"key1": "a", "key2": "b", "key3": "c", "indicate": number}).encode()


def test_each_key_is_its_own_and_the_time_is_the_records() -> None:
    """X8: the third key, where the second one stood by mistake."""
    (row,) = parse(batch(line(7))).drop_columns(["uuid"]).to_pylist()

    assert row == {"slot_time": TIME, "key1": "a", "key2": "b", "key3": "c", "indicate": 7, "_error": None}


def test_an_id_belongs_to_a_records_place_and_to_nothing_else() -> None:
    """X23: the same whenever it is read, in whatever batch; another for a record that is equal."""
    whole = parse(batch(line(7), line(7), line(8))).column("uuid").to_pylist()

    assert len(set(whole)) == 3
    assert parse(batch(line(7), line(8), first=1)).column("uuid").to_pylist() == whole[1:]


def test_what_is_no_tuple_is_an_error_of_its_own_row() -> None:
    numbers = (b"1e999", b"Infinity", b"NaN", b"99999999999999999999", b"1.9", b"true", b"null", b'"many"')
    values = (
        *(None, b"no json", b"[]", b"[" * 100_000, b'{"key1": "a"}'),
        b'{"key1":"\\ud800","key2":"b","key3":"c","indicate":1}',
        b'{"key1":1,"key2":"b","key3":"c","indicate":1}',
        *(b'{"key1":"a","key2":"b","key3":"c","indicate":%s}' % number for number in numbers),
    )

    rows = parse(batch(*values, line(1)))

    assert [error is None for error in rows.column("_error").to_pylist()] == [False] * len(values) + [True]
    assert rows.column("indicate").to_pylist() == [None] * len(values) + [1]
