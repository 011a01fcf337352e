"""What the answer of `epochline why` says of a source, and of the time at which a record went. Pure."""

from datetime import UTC, datetime

from epochline.protocol.why import Record, Why

READ, SEEN = datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 2, 12, tzinfo=UTC)


def record(**known: object) -> Record:
    return Record(**{"topic": "orders", "partition": 0, "offset": 7, **known})  # type: ignore[arg-type]


def why(**kafka: str) -> Why:
    return Why(pipeline="p", table="t", mode="append", rows=(), more=False, deletion=None, kafka=kafka, sees_bytes=True)


def test_the_times_between_which_a_record_went_are_those_of_looks() -> None:
    assert record().since_when == ""
    assert record(read_at=READ).since_when == "Kafka had it at 2026-03-01 12:00:00 UTC"
    still_there = record(read_at=READ, seen_at=SEEN, seen_start=7)
    assert still_there.since_when == "Kafka had it at 2026-03-02 12:00:00 UTC"
    gone = record(read_at=READ, seen_at=SEEN, seen_start=8)
    assert gone.since_when == "Kafka had it at 2026-03-01 12:00:00 UTC, and no longer at 2026-03-02 12:00:00 UTC"


def test_a_topic_of_several_sources_is_asked_of_its_own_cluster() -> None:
    several = why(shop="kafka_1", crm="kafka_2")

    assert several.kafka_of("crm/people/1") == ("kafka_2", "people/1")
    assert several.kafka_of("numbers/a") is None
    assert why(**{"": "kafka"}).kafka_of("a/b") == ("kafka", "a/b")
