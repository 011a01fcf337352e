"""An adopted topic's offsets begin at 0 again: what an upsert's order means then, on real PostgreSQL."""

from functools import partial
from typing import Any

import pytest

from epochline import Json, KafkaSource, KafkaTopic, Pipeline
from epochline.errors import SealRefusedError
from epochline.operations import ACTIONS, Request, Subject
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.databases import set_aside
from tests.in_memory.kafka import FakeKafka
from tests.integration.bench import LINEAGE, Bench, NewBench, Row, kv

ORDERED = {"k": "text", "v": "integer", "at": "integer"}
BY_AT: dict[str, Any] = {"record": ORDERED, "order_by": "at"}
AT_5 = [kv(key, 1, at=5) for key in "abc"]
AROUND_5 = [kv("a", 7, at=4), kv("b", 8, at=5), kv("c", 9, at=6)]


@pytest.fixture
def bench(bench: NewBench) -> NewBench:
    return partial(bench, mode="upsert", key="k")


def adopt(it: Bench) -> None:
    for partition in (0, 1):
        it.kafka.produce("orders", partition, 0, topic_id="another")
    it.act("adopt-topic", Request(actor="ada", reason="it was made again"), topic="orders")


def refusal(subject: Subject, what: str, **asked: Any) -> str:
    return ACTIONS[what].preview(subject, ACTIONS[what].parameters(**asked)).refusal or ""


def test_any_record_of_the_new_topic_wins_and_among_those_the_highest_offset(bench: NewBench) -> None:
    """ADR 0004."""
    it = bench().after([*[kv("a", 1)] * 9, kv("b", 3)])
    adopt(it)

    it.epoch(kv("a", 8), kv("a", 9))
    assert it.rows("k, v, _offset, _epoch") == [("a", 9, 1, 2), ("b", 3, 9, 1)]
    # An older record of the same log, as a requeue brings it.
    it.commit_staged(it.plan(kv("x", 0)), kv("a", 7, _offset=0))

    assert it.rows("k, v, _offset, _epoch") == [("a", 9, 1, 2), ("b", 3, 9, 1)]


@pytest.mark.parametrize(
    ("options", "old", "new", "left"),
    [
        pytest.param(
            {}, [kv("a", 1), kv("b", 2), kv("b", 3)], [{"k": "b", "_deleted": True}], [("a", 1)],
            id="a tombstone of the new topic deletes a row of the old",
        ),
        # Deleted keys are kept with their order, which is that of the old log.
        pytest.param(
            {}, [kv("a", 1), kv("a", 2), {"k": "a", "_deleted": True}], [kv("a", 5)], [("a", 5)],
            id="a key deleted in the old topic comes back with the new one",
        ),
        pytest.param(
            BY_AT, AT_5, AROUND_5, [("a", 1), ("b", 8), ("c", 9)],
            id="a declared order decides first, and of equals the new topic wins",
        ),
        pytest.param(
            BY_AT, [{**row, "_deleted": True} for row in AT_5], AROUND_5, [("b", 8), ("c", 9)],
            id="a declared order of a deletion is kept over the generations",
        ),
        pytest.param(
            {
                "existing": f"CREATE TABLE t (k text PRIMARY KEY, v integer{LINEAGE.replace(', _epoch bigint', '')})",
                "lineage": False,
            },
            [kv("a", 1), kv("a", 2)], [kv("a", 9)], [("a", 9)],
            id="a table with positions but no epoch lets the later epoch replace",
        ),
    ],
)  # fmt: skip
def test_what_a_target_keeps_of_the_old_topic_and_takes_of_the_new(
    bench: NewBench, options: dict[str, Any], old: list[Row], new: list[Row], left: list[tuple[Any, ...]]
) -> None:
    """ADR 0004."""
    it = bench(**options).after(old)
    adopt(it)

    it.epoch(*new)

    assert it.rows() == left


def test_a_key_may_move_to_another_partition_of_the_new_topic(bench: NewBench) -> None:
    it = bench().after([kv("a", 1), {"k": "b", "_deleted": True}])
    adopt(it)

    it.epoch(kv("a", 5, _partition=1), kv("b", 6, _partition=1))
    with pytest.raises(SealRefusedError, match="without an order between its records"):
        it.sealed(kv("a", 7, _partition=0))

    assert it.rows() == [("a", 5), ("b", 6)]


# Which tables take requeued records


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({}, "", id="positions"),
        pytest.param({"order_by": "at"}, "", id="a declared order"),
        pytest.param(
            {"existing": "CREATE TABLE t (k text PRIMARY KEY, v integer, at integer)", "lineage": False},
            "keeps no order columns", id="no order columns",
        ),
    ],
)  # fmt: skip
def test_only_an_upsert_that_keeps_its_order_takes_requeued_records(
    bench: NewBench, options: dict[str, Any], said: str
) -> None:
    it = bench(ORDERED, **options).after([kv("a", 1, at=5)])
    set_aside(it.dsn, 0)

    foreseen = refusal(it.subject, "requeue", everything=True)

    assert (said in foreseen) if said else (foreseen == "")
    adopt(it)
    earlier = refusal(it.subject, "requeue", everything=True, generation=1)
    assert (said or "come before every row of this one") in earlier


def test_records_are_requeued_into_a_topic_with_keys_only_on_request(postgres_dsn: str) -> None:
    """An old record would follow newer ones of its key, for which extend-back refuses topics as well."""
    ledger, kafka = PostgresLedger(postgres_dsn), FakeKafka()
    value = Json(columns={"k": "text"})

    def requeue_refusal(topic: KafkaTopic, **asked: Any) -> str:
        declared = Pipeline(
            name=topic.topic, source=KafkaSource(topics="orders"), parse=value, bad_records="quarantine", sinks=[topic]
        )
        with ledger.transaction() as tx:
            tx.targets.create(declared)
            tx.epochs.lock_pipeline(declared.name)
        into = Subject(name=declared.name, ledger=ledger, declared=declared, source=kafka)
        return refusal(into, "requeue", everything=True, **asked)

    keyed, plain = KafkaTopic(topic="keyed", key="k", value=value), KafkaTopic(topic="plain", value=value)
    assert "would take an old one for the newest" in requeue_refusal(keyed)
    assert "no record in the quarantine fits" in requeue_refusal(keyed, out_of_order=True)
    assert "no record in the quarantine fits" in requeue_refusal(plain)
