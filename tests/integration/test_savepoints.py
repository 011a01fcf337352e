"""Savepoints on real PostgreSQL: what restore undoes, what it refuses, and that going on gives the same target."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline import Pipeline
from epochline.coordinator import PlanOutcome, plan
from epochline.errors import ActionRefusedError, EpochlineError, EpochNotFoundError, SavepointFileError, TargetError
from epochline.protocol.offsets import TopicPartition
from tests.contract.worlds import run
from tests.databases import set_aside
from tests.driver import Driver, epoch_of
from tests.integration.bench import ADD, KV, UPSERT, Bench, NewBench, Row, kv
from tests.integration.guarantee import broken
from tests.integration.operating import (
    FIRST,
    act,
    again,
    begun_at_the_end,
    exported,
    extend_back,
    imported,
    with_savepoint,
)

CHAIN = (
    "SELECT generation, partition, start_offset, until_offset, chosen_by FROM epochline.committed_ranges"
    " ORDER BY generation, partition, until_offset"
)
SECOND = [kv("a", 2), kv("c", 2)]
THIRD = [kv("a", 3), kv("e", 3, _partition=1)]


def gone(k: str) -> Row:
    return {"k": k, "_deleted": True}


@contextmanager
def refused(it: Bench, said: str, error: type[EpochlineError] = ActionRefusedError) -> Iterator[None]:
    """What cannot be done is refused with the reason, and changes neither rows nor heads."""
    rows, stood = it.rows(), heads(it)
    with pytest.raises(error, match=said):
        yield
    assert (it.rows(), heads(it)) == (rows, stood)


def heads(it: Bench) -> dict[int, int]:
    return dict(it.sql("SELECT partition, next_offset FROM epochline.heads"))


def deleted_keys(it: Bench) -> list[tuple[Any, ...]]:
    ((table,),) = it.sql("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'deleted\\_%%'")
    return [row[:-1] for row in it.sql(f"SELECT * FROM epochline.{table} ORDER BY 1")]  # without the time


def images(it: Bench) -> int:
    ((count,),) = it.sql("SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'before\\_%\\_e%'")
    return int(count)


def test_a_restored_append_target_has_the_rows_of_the_savepoint_and_goes_on_as_if_never_stopped(
    bench: NewBench,
) -> None:
    """C12, C13, INV-1: later epochs' rows are gone, heads are back, their ranges are read again, once."""
    it = with_savepoint(bench)
    saved, stood = it.rows("k, v, _partition, _offset, _epoch"), heads(it)
    it.epoch(*SECOND)
    it.epoch(*THIRD)
    whole = it.rows("k, v, _partition, _offset")

    done = act(it, "restore", name="before")

    assert it.rows("k, v, _partition, _offset, _epoch") == saved
    assert heads(it) == stood == {0: 2, 1: 1}
    assert done.row.after["undone"] == [2, 3]
    assert it.sql("SELECT epoch_id, kind, undone_by FROM epochline.epochs ORDER BY epoch_id") == [
        (1, "regular", None), (2, "regular", 4), (3, "regular", 4), (4, "restore", None),
    ]  # fmt: skip
    again(it, *SECOND, *THIRD)
    assert sorted(it.rows("k, v, _partition, _offset")) == sorted(whole)
    assert it.sql(CHAIN) == [
        (1, 0, None, 0, "startup earliest"), (1, 0, 0, 2, "epoch"), (1, 0, 2, 4, "epoch"), (1, 0, 4, 5, "epoch"),
        (1, 1, None, 0, "startup earliest"), (1, 1, 0, 1, "epoch"), (1, 1, 1, 2, "epoch"),
        (2, 0, None, 0, "savepoint before"), (2, 0, 0, 2, "carried over"), (2, 0, 2, 5, "epoch"),
        (2, 1, None, 0, "savepoint before"), (2, 1, 0, 1, "carried over"), (2, 1, 1, 2, "epoch"),
    ]  # fmt: skip
    assert broken(it.sql, "orders", "t") == {}


def test_a_run_whose_epoch_a_restore_took_back_is_planned_again(bench: NewBench) -> None:
    """C13, U3, INV-8: cleared, or backfilled once more, it shows no receipt of rows that are gone."""
    it = with_savepoint(bench)
    undone = it.epoch(*SECOND)
    act(it, "restore", name="before")

    planned = Driver.plan(it, undone.epoch.run)

    assert planned.outcome is PlanOutcome.PLANNED
    it.commit_staged(planned, *SECOND)
    assert it.rows() == sorted((row["k"], row["v"]) for row in [*FIRST, *SECOND])
    assert Driver.plan(it, undone.epoch.run).outcome is PlanOutcome.ALREADY_COMMITTED


def test_after_a_failure_a_run_goes_on_from_the_last_commit_whatever_savepoints_there_are(bench: NewBench) -> None:
    """K6: a checkpoint is preferred for recovery; an older savepoint and one that is newer than it change nothing."""
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    act(it, "savepoint", name="newer")
    failed = epoch_of(it.sealed(*THIRD))
    it.abort(failed.epoch_id, failed.run, reason="a failure", by_operator=True)

    planned = it.plan()

    assert {one.tp.partition: (one.range.start, one.range.until) for one in planned.ranges} == {0: (4, 5), 1: (1, 2)}
    it.commit_staged(planned, *THIRD)
    assert it.rows() == sorted((row["k"], row["v"]) for row in [*FIRST, *SECOND, *THIRD])


def test_an_upsert_target_goes_back_by_before_images_with_what_was_deleted(bench: NewBench) -> None:
    """C12: replaced rows, deleted rows, and the memory of what had been deleted."""
    it = bench(**UPSERT, before_images=5).after([*FIRST, gone("x")])
    act(it, "savepoint", name="before")
    saved, forgotten = it.rows("k, v, _partition, _offset, _epoch"), deleted_keys(it)
    second, third = [kv("a", 2), gone("b"), kv("x", 2), kv("c", 2)], [kv("a", 3), gone("c")]
    it.epoch(*second)
    it.epoch(*third)
    whole, whole_forgotten = it.rows("k, v, _partition, _offset"), deleted_keys(it)

    act(it, "restore", name="before")

    assert (it.rows("k, v, _partition, _offset, _epoch"), deleted_keys(it)) == (saved, forgotten)
    assert [said for said in broken(it.sql, "orders", "t") if "put back" not in said] == []
    again(it, *second, *third)
    assert (it.rows("k, v, _partition, _offset"), deleted_keys(it)) == (whole, whole_forgotten)


def test_as_many_images_are_kept_as_are_declared_and_restore_counts_on_no_other(bench: NewBench) -> None:
    it = with_savepoint(bench, **ADD, before_images=2)
    for rows in (SECOND, THIRD, SECOND):
        it.epoch(*rows)
    act(it, "savepoint", name="new")
    it.epoch(*THIRD)

    assert images(it) == 2
    with refused(it, "no before-images were kept of epoch 2, 3; before_images is 2 now"):
        act(it, "restore", name="before")
    act(it, "restore", name="new")
    assert it.rows() == [("a", 8), ("b", 1), ("c", 4), ("d", 1), ("e", 3)]
    assert images(it) == 1


def test_what_cannot_go_back_is_refused_and_changes_nothing(bench: NewBench) -> None:
    it = bench(**UPSERT)
    it.plan(*FIRST)
    with pytest.raises(ActionRefusedError, match="no epoch of orders was committed yet"):
        act(it, "savepoint", name="before")
    act(it, "abort", epoch=1)
    again(it, *FIRST)
    act(it, "savepoint", name="before")
    it.epoch(*SECOND)

    with refused(it, "mode upsert, and no before-images were kept of epoch 3"):
        act(it, "restore", name="before")
    for said, what, asked in (
        ("has no savepoint else; there are: before", "restore", {"name": "else"}),
        ("has a savepoint before already", "savepoint", {"name": "before"}),
        ("nobody has no savepoint before; there are: none", "restore", {"name": "before", "of": "nobody"}),
        ("orders is not new", "restore", {"name": "before", "of": "orders"}),
    ):
        with refused(it, said):
            act(it, what, **asked)
    it.plan(*THIRD)
    with refused(it, "epoch 4 .* is PLANNED"):
        act(it, "restore", name="before")

    assert it.sql("SELECT count(*) FROM epochline.epochs WHERE undone_by IS NOT NULL") == [(0,)]


OTHER_LOG = TopicPartition(topic="orders", partition=0, topic_id="another")


@pytest.mark.parametrize(
    ("sink", "happens", "said"),
    [
        pytest.param(
            {"mode": "replace"}, None, "t has mode replace: the rows that its epochs replaced are gone", id="replaced rows"
        ),
        pytest.param(
            {"lineage": False}, None, "t is declared with lineage=False: its rows do not tell which epoch wrote them",
            id="no lineage",
        ),
        # A number means nothing in another cluster's log.
        pytest.param(
            {}, lambda it: it.sql("UPDATE epochline.pipeline SET cluster_id = 'another'"),
            "holds offsets of Kafka cluster .*, and orders reads another one now", id="another Kafka",
        ),
        # I1: the rows would be gone from the target, and from Kafka.
        pytest.param(
            {}, lambda it: it.kafka.change("orders", 0, log_start=3),
            "would go on at offset 2, but its log holds .3, 4. now; what is undone could not be read", id="retention",
        ),
        pytest.param(
            {}, lambda it: it.kafka.change("orders", 0, tp=OTHER_LOG), "the source no longer has orders-0 as it was then",
            id="a topic made again",
        ),
        pytest.param(
            {}, lambda it: setattr(it.kafka, "cluster_id", "another"),
            "belong to Kafka cluster fake, and the connection leads to another", id="a connection that leads elsewhere",
        ),
        pytest.param(
            {}, lambda it: it.kafka.change_leader("orders", 0, truncate_to=3),
            r"no longer holds orders-0.2, 4.: its log is .0, 3. now", id="truncation",
        ),
        pytest.param(
            {}, lambda it: (it.kafka.change_leader("orders", 0, truncate_to=3), it.kafka.produce("orders", 0, 5)),
            r"orders-0.2, 4. as it was read: its log was truncated at offset 3", id="truncation behind other records",
        ),
        # Its targets were given free.
        pytest.param({}, lambda it: act(it, "drop"), "orders was dropped", id="a dropped pipeline"),
    ],
)  # fmt: skip
def test_what_cannot_go_back_keeps_every_row_and_its_heads(
    bench: NewBench, sink: dict[str, Any], happens: Callable[[Bench], object] | None, said: str
) -> None:
    """C12, I1: refused with the reason."""
    it = with_savepoint(bench, **sink)
    it.epoch(*SECOND)
    if happens is not None:
        happens(it)

    with refused(it, said):
        act(it, "restore", name="before")


def test_a_savepoint_of_an_epoch_that_was_undone_brings_nothing_back(bench: NewBench) -> None:
    """C12, I1: its rows are gone from the target, and behind its heads nobody would read them again."""
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    act(it, "savepoint", name="second")
    act(it, "restore", name="before")

    with refused(it, "epoch 2 .*, after which savepoint second .* was undone by a restore"):
        act(it, "restore", name="second")

    again(it, *SECOND)
    assert it.rows() == sorted((row["k"], row["v"]) for row in [*FIRST, *SECOND])


@pytest.mark.parametrize(
    ("sink", "columns", "whole"),
    [
        (UPSERT, "k, v, _epoch", [("a", 3), ("b", 1), ("c", 2), ("d", 1), ("e", 3)]),
        (ADD, "k, v", [("a", 6), ("b", 1), ("c", 2), ("d", 1), ("e", 3)]),
    ],
    ids=["upsert", "sums"],
)
def test_one_goes_back_to_the_same_savepoint_as_often_as_needed(
    bench: NewBench, sink: dict[str, Any], columns: str, whole: list[tuple[str, int]]
) -> None:
    """C12: a restore replaced no rows, so that no before-image of it is asked for."""
    it = with_savepoint(bench, **sink, before_images=5)
    saved = it.rows(columns)
    it.epoch(*SECOND)
    it.epoch(*THIRD)
    assert it.rows() == whole

    for undone in ([2, 3], [4, 5]):
        done = act(it, "restore", name="before")

        assert done.row.after["undone"] == undone
        assert it.rows(columns) == saved
        again(it, *SECOND, *THIRD)
        assert it.rows() == whole


def test_a_partition_that_is_younger_than_the_savepoint_begins_where_it_began(bench: NewBench) -> None:
    """S9: where a partition begins is decided once; a restore does not change it."""
    it = bench().after([kv("a", 1)])
    act(it, "savepoint", name="before")
    it.kafka.produce("orders", 2, 3)
    again(it, *(kv(k, 1, _partition=2) for k in "bcd"))
    assert heads(it) == {0: 1, 1: 0, 2: 3}

    act(it, "restore", name="before")

    assert heads(it) == {0: 1, 1: 0, 2: 0}


def into_another_table(it: Bench, **changes: str) -> Pipeline:
    """The pipeline as it would be with the table `u`, which is made, in the place of `t`."""
    other = it.pipeline.model_copy(update={"sinks": (it.sink.model_copy(update={"table": "u"}),), **changes})
    with it.ledger.transaction() as tx:
        tx.targets.create(other)
    return other


def test_a_table_that_is_declared_no_more_keeps_nothing_of_what_is_undone(bench: NewBench) -> None:
    """INV-2: or its rows would be there twice when it is declared again."""
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    other = into_another_table(it)

    with refused(it, "orders no longer declares t, which holds rows of epochs 2"):
        act(it, "restore", declared=other, name="before")


def test_rows_of_somebody_else_with_the_same_epoch_are_not_taken_away(bench: NewBench) -> None:
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    it.sql("INSERT INTO t (k, v, _epoch) VALUES ('theirs', 1, 2)")

    with refused(it, "t holds 3 rows with the numbers of epochs 2 of orders, which wrote 2", TargetError):
        act(it, "restore", name="before")


def test_a_new_pipeline_takes_no_table_of_another_one(bench: NewBench) -> None:
    """Somebody copied a DAG file and changed the name alone."""
    it = with_savepoint(bench)
    copy = it.pipeline.model_copy(update={"name": "second"})

    with refused(it, "belongs to pipeline orders", TargetError):
        act(it, "restore", declared=copy, name="before", of="orders")

    assert it.sql("SELECT count(*) FROM epochline.epoch WHERE pipeline = 'second'") == [(0,)]


def test_what_was_quarantined_since_is_forgotten_and_set_aside_again(bench: NewBench) -> None:
    """INV-9: each record once, in the target or in the quarantine, before and after."""
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    set_aside(it.dsn, 1, 1, epoch_id=2)

    act(it, "restore", name="before")

    assert it.sql("SELECT count(*) FROM epochline.quarantine") == [(0,)]
    assert it.plan().outcome is PlanOutcome.PLANNED


def test_a_new_pipeline_begins_where_a_savepoint_of_another_one_stands(bench: NewBench) -> None:
    """C13: its heads are the savepoint's, its target is empty, and the other pipeline goes on undisturbed."""
    it = with_savepoint(bench)
    it.epoch(*SECOND)
    other = into_another_table(it, name="second")

    act(it, "restore", declared=other, name="before", of="orders")

    planned = plan(it.ledger, it.kafka, other, run("run-1"))
    assert planned.epoch is not None
    assert [(one.tp.partition, one.range.start, one.range.until) for one in planned.ranges] == [(0, 2, 4)]
    assert it.sql("SELECT count(*) FROM u") == [(0,)]
    stand = it.sql("SELECT pipeline, partition, next_offset FROM epochline.heads ORDER BY 1, 2")
    assert stand == [("orders", 0, 4), ("orders", 1, 1), ("second", 0, 2), ("second", 1, 1)]
    act(it, "abort", epoch=planned.epoch.epoch_id, declared=other)
    with refused(it, "second is not new"):
        act(it, "restore", declared=other, name="before", of="orders")


def test_a_savepoint_goes_through_a_file_into_another_database(
    bench: NewBench, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """C11: the file says which epoch it is and where each partition stood; a damaged one is refused."""
    it = with_savepoint(bench)
    file = exported(it, tmp_path / "before.zip")
    described = json.loads(zipfile.ZipFile(file).read("savepoint.json"))
    there = Bench(new_database(), it.sink, KV)

    imported(there, file)

    assert described["epoch_id"] == 1
    assert {one["partition"]: one["next_offset"] for one in described["heads"]} == {0: 2, 1: 1}
    with pytest.raises(EpochNotFoundError, match="knows no pipeline"):
        act(there, "restore", name="before")
    for partition, offset in heads(it).items():
        there.kafka.produce("orders", partition, offset)
    act(there, "restore", name="before", of="orders")
    assert heads(there) == {0: 2, 1: 1}
    (tmp_path / "damaged.zip").write_bytes(file.read_bytes()[:-30])
    for given, said in ((tmp_path / "damaged.zip", "no savepoint, or was damaged"), (file, "is here already")):
        with pytest.raises(SavepointFileError, match=said):
            imported(there, given)


@pytest.fixture
def late(bench: NewBench) -> Bench:
    """A pipeline that began at offset 4, with a savepoint after one epoch and one epoch more."""
    it = begun_at_the_end(bench, 4)
    it.epoch(kv("first", 1))
    act(it, "savepoint", name="before")
    it.epoch(kv("second", 2))
    return it


def test_what_was_extended_back_since_a_savepoint_is_not_undone(late: Bench) -> None:
    """INV-1, I1: it lies before every head, and no run would read it again; a later savepoint keeps it."""
    extend_back(late, "old 0", "old 1", "old 2", "old 3")
    act(late, "savepoint", name="after")
    late.epoch(kv("last", 2))
    rows = late.rows()

    with refused(late, "epoch 3 .* extended orders back after savepoint before"):
        act(late, "restore", name="before")

    act(late, "restore", name="after")
    again(late, kv("last", 2))
    assert late.rows() == rows


def test_after_a_restore_a_pipeline_is_extended_back_as_before_it(late: Bench) -> None:
    """INV-1, S9: its origin stays where it was; what the savepoint holds is one link of the new generation."""
    act(late, "restore", name="before")

    assert late.sql(CHAIN)[-3:] == [
        (2, 0, None, 4, "savepoint before"), (2, 0, 4, 5, "carried over"), (2, 1, None, 0, "savepoint before"),
    ]  # fmt: skip
    again(late, kv("second", 2))
    assert extend_back(late, "old 0", "old 1", "old 2", "old 3") == ["orders-0[0, 4)"]
    assert late.rows() == [("first", 1), *((f"old {n}", n) for n in range(4)), ("second", 2)]
    act(late, "savepoint", name="whole")
    late.epoch(kv("third", 3))
    act(late, "restore", name="whole")
    assert late.sql(CHAIN)[-3:-1] == [(3, 0, None, 0, "savepoint whole"), (3, 0, 0, 6, "carried over")]
    assert len(late.rows()) == 6
    assert broken(late.sql, "orders", "t") == {}


def test_a_savepoint_from_after_an_adoption_knows_where_the_new_log_began(late: Bench) -> None:
    """INV-1: the epoch that it stands after is of an earlier generation, its heads are not."""
    late.kafka.change_leader("orders", 0, truncate_to=5)
    late.kafka.produce("orders", 0, 3)
    act(late, "adopt-topic", topic="orders", at="latest")
    act(late, "savepoint", name="adopted")
    late.epoch(kv("third", 3))

    act(late, "restore", name="adopted")

    assert late.sql(CHAIN)[-2:] == [(3, 0, None, 8, "savepoint adopted"), (3, 1, None, 0, "savepoint adopted")]


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END$$;
CREATE TRIGGER slow AFTER INSERT OR DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


def test_a_trial_and_a_restore_may_take_as_long_as_a_commit(bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: else the epoch could never be sealed, and the restore never be done."""
    monkeypatch.setattr("epochline.postgres.ledger.transactions.STATEMENT_TIMEOUT_SECONDS", 1)
    it = bench()
    it.pipeline = it.pipeline.model_copy(update={"commit_statement_timeout": timedelta(minutes=1)})
    it.sql(SLOW)
    it.epoch(kv("a", 1))
    act(it, "savepoint", name="one")
    it.epoch(kv("b", 2))

    act(it, "restore", name="one")

    assert it.rows() == [("a", 1)]
