"""N11: the insert time of a row is the time at which its epoch was planned, and no retry changes it."""

import pytest

from epochline.coordinator import plan
from epochline.errors import TargetError
from tests.driver import epoch_of
from tests.integration.bench import LINEAGE, NewBench, kv

MODES = {
    "append": {}, "append with a unique key": {"key": "k", "repeats": "skip"}, "upsert": {"mode": "upsert", "key": "k"},
    "replace": {"mode": "replace"},
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_retried_epoch_writes_the_time_of_its_plan(bench: NewBench, mode: dict[str, str]) -> None:
    one = bench(insert_time="inserted_at", **mode)
    first = one.sealed(kv("a", 1))
    one.abort(1, "operator", reason="once more", by_operator=True)

    again = plan(one.ledger, one.kafka, one.pipeline, epoch_of(first).run)
    one.commit_staged(again, kv("a", 1))

    assert epoch_of(again).epoch_id == 1
    planned = epoch_of(first).planned_at
    assert one.rows("k, v, inserted_at") == [("a", 1, planned)]
    later = one.epoch(kv("a", 2)).epoch.planned_at
    assert later > planned
    newest = planned if "repeats" in mode else later
    assert one.sql("SELECT max(inserted_at) FROM t") == [(newest,)]


def test_a_table_that_exists_needs_the_column_of_the_insert_time(bench: NewBench) -> None:
    one = bench(existing=f"CREATE TABLE t (k text, v int{LINEAGE})", insert_time="inserted_at")
    with pytest.raises(TargetError, match="lacks inserted_at timestamp with time zone"):
        one.plan(kv("a", 1))

    one.sql("ALTER TABLE t ADD inserted_at timestamptz NOT NULL")
    planned = one.sealed(kv("a", 1))
    one.commit(planned)

    assert one.rows("k, v, inserted_at") == [("a", 1, epoch_of(planned).planned_at)]
