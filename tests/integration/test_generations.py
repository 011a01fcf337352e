"""An adopted topic's offsets begin at 0 again: what an upsert's order means then, on real PostgreSQL."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from epochline import Json, KafkaSource, KafkaTopic, Pipeline
from epochline.errors import SealRefusedError
from epochline.operations import ACTIONS, Request, Subject
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.testing import FakeKafka
from tests.integration.bench import LINEAGE, Bench, NewBench

ORDERED = {"k": "text", "v": "integer", "at": "integer"}


@pytest.fixture
def bench(bench: NewBench) -> NewBench:
    return partial(bench, mode="upsert", key="k")


def adopt(it: Bench) -> None:
    for partition in (0, 1):
        it.kafka.produce("orders", partition, 0, topic_id="another")
    action = ACTIONS["adopt-topic"]
    subject = Subject(name="orders", ledger=it.ledger, declared=it.pipeline, source=it.kafka)
    action.act(subject, action.parameters(topic="orders"), Request(actor="ada", reason="it was made again"))


def test_a_record_of_the_new_topic_wins_over_any_of_the_old_whatever_its_offset(bench: NewBench) -> None:
    """ADR 0004."""
    it = bench()
    it.epoch({"k": "a", "v": 1}, {"k": "a", "v": 2}, {"k": "b", "v": 3})
    adopt(it)

    it.epoch({"k": "a", "v": 9})

    assert it.rows("k, v, _offset, _epoch") == [("a", 9, 0, 2), ("b", 3, 2, 1)]


def test_within_the_new_generation_the_highest_offset_wins_again(bench: NewBench) -> None:
    it = bench()
    it.epoch(*({"k": "a", "v": 1} for _ in range(10)))
    adopt(it)

    it.epoch({"k": "a", "v": 8}, {"k": "a", "v": 9})
    # An older record of the same log, as a requeue brings it.
    planned = it.plan({"k": "x", "v": 0})
    ticket = it.stage(planned, {"k": "a", "v": 7, "_offset": 0})
    assert planned.epoch is not None
    from epochline.coordinator import seal

    seal(it.ledger, it.kafka, ticket, planned.epoch.run)
    it.commit(planned)

    assert it.rows() == [("a", 9)]


def test_a_tombstone_of_the_new_topic_deletes_a_row_of_the_old(bench: NewBench) -> None:
    it = bench()
    it.epoch({"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "b", "v": 3})
    adopt(it)

    it.epoch({"k": "b", "_deleted": True})

    assert it.rows() == [("a", 1)]


def test_a_key_deleted_in_the_old_topic_comes_back_with_the_new_one(bench: NewBench) -> None:
    """ADR 0004: deleted keys are kept with their order, which is that of the old log."""
    it = bench()
    it.epoch({"k": "a", "v": 1}, {"k": "a", "v": 2}, {"k": "a", "_deleted": True})
    adopt(it)

    it.epoch({"k": "a", "v": 5})

    assert it.rows() == [("a", 5)]


def test_a_key_may_move_to_another_partition_of_the_new_topic(bench: NewBench) -> None:
    it = bench()
    it.epoch({"k": "a", "v": 1}, {"k": "b", "_deleted": True})
    adopt(it)

    it.epoch({"k": "a", "v": 5, "_partition": 1}, {"k": "b", "v": 6, "_partition": 1})
    with pytest.raises(SealRefusedError, match="without an order between its records"):
        it.sealed({"k": "a", "v": 7, "_partition": 0})

    assert it.rows() == [("a", 5), ("b", 6)]


def test_a_declared_order_still_decides_first_and_of_equals_the_new_topic_wins(bench: NewBench) -> None:
    it = bench(ORDERED, order_by="at")
    it.epoch({"k": "a", "v": 1, "at": 5}, {"k": "b", "v": 2, "at": 5}, {"k": "c", "v": 3, "at": 5})
    adopt(it)

    it.epoch({"k": "a", "v": 7, "at": 4}, {"k": "b", "v": 8, "at": 5}, {"k": "c", "v": 9, "at": 6})

    assert it.rows() == [("a", 1), ("b", 8), ("c", 9)]


def test_a_declared_order_of_a_deletion_is_kept_over_the_generations(bench: NewBench) -> None:
    it = bench(ORDERED, order_by="at")
    deleted = [{"k": key, "v": 1, "at": 5, "_deleted": True} for key in "abc"]
    it.epoch(*deleted)
    adopt(it)

    it.epoch({"k": "a", "v": 7, "at": 4}, {"k": "b", "v": 8, "at": 5}, {"k": "c", "v": 9, "at": 6})

    assert it.rows() == [("b", 8), ("c", 9)]


def test_a_table_that_keeps_positions_but_no_epoch_lets_the_later_epoch_replace(bench: NewBench) -> None:
    columns = LINEAGE.replace(", _epoch bigint", "")
    it = bench(existing=f"CREATE TABLE t (k text PRIMARY KEY, v integer{columns})", lineage=False)
    it.epoch({"k": "a", "v": 1}, {"k": "a", "v": 2})
    adopt(it)

    it.epoch({"k": "a", "v": 9})

    assert it.rows() == [("a", 9)]


# Which tables take requeued records


@pytest.mark.parametrize(
    ("existing", "sink", "refusal"),
    [
        pytest.param(None, {}, None, id="positions"),
        pytest.param(None, {"order_by": "at"}, None, id="a declared order"),
        pytest.param(
            "CREATE TABLE t (k text PRIMARY KEY, v integer, at integer)", {"lineage": False}, "keeps no order columns",
            id="no order columns",
        ),
    ],
)  # fmt: skip
def test_only_an_upsert_target_that_keeps_its_order_takes_requeued_records(
    bench: NewBench, existing: str | None, sink: dict[str, Any], refusal: str | None
) -> None:
    it = bench(ORDERED, existing=existing, **sink)
    it.epoch({"k": "a", "v": 1, "at": 5})
    it.sql(
        "INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, partition,"
        " \"offset\", value, reason) VALUES ('orders', 1, 1, 'orders', 'id-of-orders', 0, 0, 'x', 'no JSON')"
    )
    action = ACTIONS["requeue"]
    subject = Subject(name="orders", ledger=it.ledger, declared=it.pipeline, source=it.kafka)

    foreseen = action.preview(subject, action.parameters(everything=True))

    assert (foreseen.refusal is None) if refusal is None else (refusal in (foreseen.refusal or ""))
    adopt(it)
    earlier = action.preview(subject, action.parameters(everything=True, generation=1))
    assert (refusal or "come before every row of this one") in (earlier.refusal or "")


def test_extend_back_is_refused_for_an_upsert_target(bench: NewBench) -> None:
    it = bench()
    it.epoch({"k": "a", "v": 1})
    action = ACTIONS["extend-back"]
    subject = Subject(name="orders", ledger=it.ledger, declared=it.pipeline, source=it.kafka)

    assert "only rows of mode append and add" in (
        action.preview(subject, action.parameters(to="earliest")).refusal or ""
    )


def test_records_are_requeued_into_a_topic_with_keys_only_where_somebody_says_so(postgres_dsn: str) -> None:
    """An old record would follow newer ones of its key, for which extend-back refuses topics as well."""
    ledger, kafka = PostgresLedger(postgres_dsn), FakeKafka()
    value = Json(columns={"k": "text"})
    action = ACTIONS["requeue"]

    def refusal(topic: KafkaTopic, **asked: Any) -> str:
        declared = Pipeline(
            name=topic.topic, source=KafkaSource(topics="orders"), parse=value, bad_records="quarantine", sinks=[topic]
        )
        with ledger.transaction() as tx:
            tx.targets.create(declared)
            tx.epochs.lock_pipeline(declared.name)
        subject = Subject(name=declared.name, ledger=ledger, declared=declared, source=kafka)
        return action.preview(subject, action.parameters(everything=True, **asked)).refusal or ""

    keyed, plain = KafkaTopic(topic="keyed", key="k", value=value), KafkaTopic(topic="plain", value=value)
    assert "would take an old one for the newest" in refusal(keyed)
    assert "no record in the quarantine fits" in refusal(keyed, out_of_order=True)
    assert "no record in the quarantine fits" in refusal(plain)
