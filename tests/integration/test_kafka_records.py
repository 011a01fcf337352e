"""Reading ranges of offsets from a real broker: what Spark's tasks and audits stand on."""

import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from threading import Timer
from typing import Any

import pytest
from kafka import KafkaProducer

from epochline.arrow.cast.batches import record_batch
from epochline.errors import RecordsGoneError, SourceUnavailableError
from epochline.kafka.records import Columns, RecordReader
from epochline.protocol.offsets import OffsetRange
from tests.integration.kafka_topics import Topic, configure, delete_records, delete_topic, transactional_producer

ANY_TIME = str(2**63 - 1)


class LateClock:
    """The module `time` of a process that somebody kept waiting."""

    late = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.late


class NotUtf8(str):
    """The name of a header that another client wrote."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff\xfe"


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> Topic:
    any_time = {"message.timestamp.after.max.ms": ANY_TIME, "message.timestamp.before.max.ms": ANY_TIME}
    return Topic(kafka_bootstrap, topic_name).make(2, **any_time)


def read(topic: Topic, start: int, until: int, *, patience: float = 60, **limits: Any) -> list[Columns]:
    with RecordReader({"bootstrap.servers": str(topic.servers)}, patience, **limits).session() as session:
        return list(session.read(topic.name, 0, OffsetRange(start=start, until=until)))


def column(name: str, batches: Sequence[Columns]) -> list[Any]:
    return list(chain.from_iterable(batch[name] for batch in batches))


def send(topic: Topic, values: Sequence[bytes | None], **options: Any) -> None:
    with closing(KafkaProducer(bootstrap_servers=topic.servers, max_request_size=4_000_000)) as producer:
        for sent in [producer.send(topic.name, value=value, partition=0, **options) for value in values]:
            sent.get(30)


def transactions(topic: Topic, *ends: bool, records: int = 5) -> None:
    with transactional_producer(topic.servers, topic.name) as producer:
        for committed in ends:
            producer.begin_transaction()
            for number in range(records):
                producer.send(topic.name, value=b"%d" % number, partition=0)
            producer.flush()
            producer.commit_transaction() if committed else producer.abort_transaction()


@pytest.mark.parametrize(
    ("ends", "until"),
    [((True, False), 12), ((False,), 6), ((True, False, True), 12), ((True,), 6)],
    ids=["the end of the log is aborted", "everything is aborted", "more follows", "the end is a marker"],
)
def test_a_range_whose_last_offsets_hold_no_record_ends(topic: Topic, ends: tuple[bool, ...], until: int) -> None:
    """S13, F23, F24: the position says that a range is read, and no time-out is waited for."""
    transactions(topic, *ends)
    batches = read(topic, 0, until, patience=100_000)

    committed = [at for number, one in enumerate(ends) if one for at in range(number * 6, number * 6 + 5)]
    assert column("offset", batches) == [at for at in committed if at < until]


def test_a_range_gives_the_same_batches_however_its_records_come(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-3: a part that is repeated sums and flushes at the same records."""
    limits = {"records": 50, "size": 20_000}
    sizes = [10] * 120 + [3_000] * 20 + [50_000] * 2 + [10] * 33
    send(topic, [b"x" * size for size in sizes])
    first = read(topic, 0, len(sizes), **limits)
    # Another pace of the client.
    monkeypatch.setattr("epochline.kafka.records._TURN_SECONDS", 0.001)
    monkeypatch.setattr("epochline.kafka.records._FIRST_BYTES", 1)

    again = read(topic, 0, len(sizes), **limits)

    cuts = [[len(batch["offset"]) for batch in batches] for batches in (first, again)]
    assert cuts[0] == cuts[1]
    assert column("offset", again) == list(range(len(sizes)))
    assert max(cuts[0]) == 50
    assert all(sum(map(len, batch["value"])) < 20_000 + 50_000 for batch in first)


def test_a_caller_that_takes_its_time_with_a_batch_is_no_kafka_that_does_not_answer(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(topic, [b"x"] * 10)
    found: list[int] = []
    clock = LateClock()
    monkeypatch.setattr("epochline.kafka.records.time", clock)

    with RecordReader({"bootstrap.servers": str(topic.servers)}, patience=60, records=10).session() as session:
        for batch in session.read(topic.name, 0, OffsetRange(start=0, until=20)):
            found += batch["offset"]
            if len(found) == 10:
                # They come after the caller goes on, so that the client has nothing when it is asked next.
                Timer(0.5, send, (topic, [b"x"] * 10)).start()
            clock.late += 3600

    assert found == list(range(20))


def test_one_session_reads_many_ranges_whole_and_mixes_none(topic: Topic) -> None:
    """INV-3."""
    for partition in (0, 1):
        with closing(KafkaProducer(bootstrap_servers=topic.servers)) as producer:
            for number in range(2_000):
                producer.send(topic.name, value=b"%d-%d" % (partition, number), partition=partition)
            producer.flush()
    with RecordReader({"bootstrap.servers": str(topic.servers)}).session() as session:
        for partition, start, until in ((0, 0, 700), (1, 100, 900), (0, 700, 701), (1, 1_999, 2_000), (0, 0, 2_000)):
            found = list(session.read(topic.name, partition, OffsetRange(start=start, until=until)))

            assert column("value", found) == [b"%d-%d" % (partition, number) for number in range(start, until)]


@pytest.mark.parametrize(
    ("start", "until", "said"),
    [
        pytest.param(5, 20, r"-0\[5, 20\): Kafka no longer has these offsets", id="removed by retention"),
        pytest.param(15, 25, "the log ends at offset 20", id="the log ends within"),
        pytest.param(20, 25, "the log ends at offset 20", id="the log ends at its begin"),
    ],
)
def test_a_range_that_kafka_does_not_hold_is_data_loss(topic: Topic, start: int, until: int, said: str) -> None:
    """F25, F26, INV-9."""
    send(topic, [b"x"] * 20)
    delete_records(topic.servers, topic.name, {0: 10})

    with pytest.raises(RecordsGoneError, match=said):
        read(topic, start, until, patience=10)


def test_a_topic_that_is_gone_is_named_and_a_retry_asks_again(topic: Topic) -> None:
    send(topic, [b"x"] * 5)
    delete_topic(topic.servers, topic.name)

    with pytest.raises(SourceUnavailableError, match=f"{topic}-0"):
        read(topic, 0, 5, patience=2)


def test_a_header_whose_name_is_not_utf8_costs_the_headers_and_not_the_record(topic: Topic) -> None:
    """F28: librdkafka's client gives no header of such a record."""
    send(topic, [b"a"], headers=[("h", b"1")])
    send(topic, [b"b"], headers=[(NotUtf8("h"), b"1"), ("other", b"2")])
    send(topic, [b"c"], headers=[("h", b"")])

    [batch] = read(topic, 0, 3)

    rows = record_batch(topic.name, 0, batch).to_pylist()
    assert [row["value"] for row in rows] == [b"a", b"b", b"c"]
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"1"}], [{"key": "\N{REPLACEMENT CHARACTER}", "value": None}], [{"key": "h", "value": b""}],
    ]  # fmt: skip


def test_a_timestamp_that_is_no_time_is_null_and_its_kind_is_kafkas(topic: Topic) -> None:
    """F28: Kafka takes any number as a timestamp."""
    for stamp in (0, -5, 2**62, -(2**62)):
        send(topic, [b"x"], timestamp_ms=stamp)

    [batch] = read(topic, 0, 4)

    rows = record_batch(topic.name, 0, batch).to_pylist()
    moments = [datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 995_000, tzinfo=UTC), None, None]
    assert [row["timestamp"] for row in rows] == moments
    assert {row["timestamp_type"] for row in rows} == {0}


def test_records_above_the_fetch_size_are_read_in_bounded_batches(topic: Topic) -> None:
    """F30: a batch ends after 16 MiB."""
    configure(topic.servers, topic.name, **{"max.message.bytes": "4000000"})
    send(topic, [b"x" * 3_000_000] * 12)

    batches = read(topic, 0, 12)

    assert [len(batch["offset"]) for batch in batches] == [6, 6]
    assert {len(value) for value in column("value", batches)} == {3_000_000}
