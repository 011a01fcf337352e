"""The source digest: equal for the same records in any order and any batches, different for others."""

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.arrow.cast.batches import source_batch
from epochline.arrow.stage.counts import digest, record_hashes

Record = tuple[str, int, int, bytes | None, bytes | None]

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=40) | st.binary(min_size=1020, max_size=1030),
    ),
    max_size=12,
)


def batch(records: list[Record]) -> pa.RecordBatch:
    names = ("topic", "partition", "offset", "key", "value")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.binary())
    columns = list(zip(*records, strict=True)) or [()] * 5
    return source_batch(pa.record_batch({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)}))


def digest_of(records: list[Record]) -> int:
    return digest(record_hashes(batch(records)))


@given(RECORDS, st.randoms(), st.integers(0, 12))
def test_the_digest_knows_no_order_and_no_batches(records: list[Record], random: Random, cut: int) -> None:
    whole = batch(records)
    parts = [digest(record_hashes(part)) for part in (whole.slice(0, cut), whole.slice(cut))]

    assert digest_of(random.sample(records, len(records))) == digest(record_hashes(whole)) == sum(parts) % 2**64


@given(RECORDS.filter(bool), st.data(), st.sampled_from(["topic", "partition", "offset", "key", "value"]))
def test_another_record_gives_another_digest(records: list[Record], data: st.DataObject, what: str) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    topic, partition, offset, key, value = records[at]
    changed = {
        "topic": (topic + "0", partition, offset, key, value),
        "partition": (topic, partition ^ 1, offset, key, value),
        "offset": (topic, partition, offset ^ 1, key, value),
        "key": (topic, partition, offset, (key or b"") + b"\0", value),
        "value": (topic, partition, offset, key, None if value == b"" else b"" if value is None else value[:-1]),
    }[what]

    assert digest_of([*records[:at], changed, *records[at + 1 :]]) != digest_of(records)


def test_key_and_value_do_not_run_into_each_other() -> None:
    assert digest_of([("t", 0, 0, b"ab", b"c")]) != digest_of([("t", 0, 0, b"a", b"bc")])


def test_the_digest_is_what_it_was_in_earlier_processes_and_versions() -> None:
    """An attempt may be tried again by another process and version; a change of the digest would fail it."""
    assert digest_of([]) == 0
    records: list[Record] = [("t", 3, 7, b"key", b"a value longer than a word"), ("u", 0, 0, None, b"x" * 2000)]
    assert digest_of(records) == 16325215890746047749


@pytest.mark.parametrize("long", [b"x" * 1024, b"x" * 1025])
def test_long_and_short_values_stand_side_by_side(long: bytes) -> None:
    together = digest_of([("t", 0, 0, None, long), ("t", 0, 1, None, b"short")])

    assert together == (digest_of([("t", 0, 0, None, long)]) + digest_of([("t", 0, 1, None, b"short")])) % 2**64
