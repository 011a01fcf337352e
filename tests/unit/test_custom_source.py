"""Sources of a user's own: what a declaration refuses, and what a read proves."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline import CustomSource, KafkaSource
from epochline.declare.inputs import require_kafka
from epochline.declare.specs import CustomSourceSpec
from epochline.errors import ConfigurationError, DeclarationError, RecordsGoneError, SourceError, SourceUnavailableError
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.source import SourcePartition, SourceRecord
from epochline.sources.counter import Counter
from epochline.sources.reading import SourceReading, open_source
from tests.declaring import pipeline, read_back

COUNTER = "epochline.sources.counter:Counter"
BEGAN = "2026-01-01T00:00:00Z"


def spec(source: str = COUNTER, *, dense: bool = True, **options: Any) -> CustomSourceSpec:
    return CustomSourceSpec(name="numbers", source=source, options=options, dense=dense)


class Given:
    def __init__(self, positions: Sequence[int], error: Exception | None = None) -> None:
        self._positions, self._error = positions, error

    def partitions(self) -> Sequence[SourcePartition]:
        return []

    def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
        yield from (SourceRecord(position=one, value=b"x" * one) for one in self._positions)
        if self._error is not None:
            raise self._error

    def count(self, partition: int, start: int, until: int) -> int:
        return len(self._positions)


def read(positions: Sequence[int], *, dense: bool = True, error: Exception | None = None, most: int = 2) -> list[Any]:
    reading = SourceReading(spec(dense=dense), Given(positions, error), most)
    return [list(one["offset"]) for one in reading.read("numbers", 0, OffsetRange(start=3, until=8))]


@pytest.mark.parametrize(
    "source",
    [{"queue": "orders"}, {"kind": "rocketmq", "topics": "orders"}, object(), "orders"],
    ids=["fields", "kind", "object", "text"],
)
def test_an_unknown_type_of_source_is_refused_with_the_types_that_there_are(source: Any) -> None:
    """Q9."""
    with pytest.raises(DeclarationError, match=r"source: unknown type of source; there are KafkaSource.*CustomSource"):
        pipeline(source=source)


@pytest.mark.parametrize(
    ("fields", "more", "said"),
    [
        ({"source": "no.such:Class"}, {}, "module:Class"),
        ({"source": "epochline.sources.counter:Nothing"}, {}, "defines no class 'Nothing'"),
        ({"source": COUNTER, "positions": "some"}, {}, "positions"),
        ({"source": COUNTER, "startup": "group"}, {}, "startup"),
        ({"source": COUNTER}, {"wake_on_data": 10}, "only records in Kafka start runs; give the pipeline a schedule"),
    ],
)
def test_an_invalid_source_is_refused(fields: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        pipeline(source=CustomSource(**fields), **more)


def test_what_needs_kafka_is_refused_with_the_sources_name() -> None:
    kafka = KafkaSource(topics="orders")
    assert require_kafka("numbers", kafka, "an audit") is kafka
    with pytest.raises(ConfigurationError, match="an audit needs a source in Kafka, and this pipeline reads mine"):
        require_kafka("numbers", CustomSource(source=COUNTER, label="mine"), "an audit")


def test_the_ledger_gives_the_same_declaration_back() -> None:
    declared = pipeline(source=CustomSource(source=COUNTER, options={"began": BEGAN}, positions="sparse"))

    assert read_back(declared).source.topics == (COUNTER,)


def test_a_read_comes_in_batches_in_order() -> None:
    assert read([3, 4, 5, 6, 7]) == [[3, 4], [5, 6], [7]]
    assert read([3, 7], dense=False) == [[3, 7]]
    assert read([], dense=False) == []


def test_a_batch_ends_after_16_mebibytes() -> None:
    class Large(Given):
        def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
            yield from (SourceRecord(position=one, value=b"x" * 9_000_000) for one in range(start, until))

    reading = SourceReading(spec(), Large([]), 1_000)
    assert [len(one["offset"]) for one in reading.read("t", 0, OffsetRange(start=0, until=5))] == [2, 2, 1]


@pytest.mark.parametrize("positions", [[4, 5, 6, 7], [3, 4, 6, 7], [3, 4, 5, 6], []], ids=str)
def test_a_dense_source_that_lacks_a_position_is_refused(positions: list[int]) -> None:
    """INV-9."""
    with pytest.raises(RecordsGoneError, match="has no record at position"):
        read(positions)


@pytest.mark.parametrize("positions", [[2, 3], [3, 3], [5, 4], [3, 8]], ids=str)
@pytest.mark.parametrize("dense", [True, False])
def test_positions_that_do_not_rise_or_lie_outside_the_range_are_refused(positions: list[int], dense: bool) -> None:
    with pytest.raises(SourceError):
        read(positions, dense=dense)


def test_the_error_of_a_source_says_whether_a_retry_helps() -> None:
    with pytest.raises(SourceUnavailableError, match=r"numbers-0\[3, 8\) was read: TimeoutError: late"):
        read([3], error=TimeoutError("late"))
    with pytest.raises(SourceError, match="KeyError") as raised:
        read([3], error=KeyError("x"))
    assert not raised.value.retryable
    with pytest.raises(SourceError, match="cannot be opened: TypeError"):
        open_source(spec(colour="blue"))


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2)])
def test_a_partition_with_impossible_positions_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="0 <= start <= end"):
        SourcePartition(partition=0, identity="x", start=start, end=end)


def test_the_counter_gives_one_number_per_tick() -> None:
    began = (datetime.now(UTC) - timedelta(seconds=100)).isoformat()

    assert 99 <= Counter(began).partitions()[0].end <= 101
    assert [one.end for one in Counter(began, seconds=10, numbers=7, partitions=2).partitions()] == [7, 7]
    assert Counter((datetime.now(UTC) + timedelta(hours=1)).isoformat()).partitions()[0].end == 0
    assert [(one.position, one.value) for one in Counter(began).read(0, 3, 5)] == [(3, b"4"), (4, b"5")]
    assert Counter(began).partitions()[0].identity != Counter(BEGAN).partitions()[0].identity
    with pytest.raises(ValueError, match="time zone"):
        Counter("2026-01-01")
