"""A target that epochs wrote is that table: another one in its place stops the pipeline, and no command hides it."""

from typing import Any

import pytest

from epochline.errors import ActionRefusedError, PipelineStandsError, TargetError
from epochline.operations.replay import plan_replay, promote
from tests.contract.worlds import run
from tests.driver import epoch_of
from tests.integration.bench import ADD, KV, LINEAGE, UPSERT, Bench, NewBench, Row, kv
from tests.integration.operating import ORDER, act, again, with_savepoint
from tests.ways import way_on

ROWS, MORE = [kv("a", 1), kv("b", 1)], [kv("c", 2)]
MODES: dict[str, dict[str, Any]] = {
    "append": {}, "append without lineage": {"lineage": False}, "append with a key": {"key": "k", "repeats": "skip"},
    "upsert": UPSERT, "add": ADD, "replace": {"mode": "replace"},
}  # fmt: skip
MADE_AGAIN = "ALTER TABLE t RENAME TO t_old; CREATE TABLE t (LIKE t_old INCLUDING ALL)"


def gone(k: str) -> Row:
    return {"k": k, "_deleted": True}


def migrate(it: Bench) -> list[str]:
    with it.ledger.transaction() as tx:
        return list(tx.targets.create(it.pipeline))


def stands(it: Bench, said: str) -> str:
    """Plan, its preview and migrate refuse, without a change; what they say."""
    before = it.sql("SELECT pipeline, epoch_id, state FROM epochline.epoch ORDER BY 1, 2")
    for refused in (it.plan, it.preview):
        with pytest.raises(PipelineStandsError, match=said) as found:
            refused()
    assert it.sql("SELECT pipeline, epoch_id, state FROM epochline.epoch ORDER BY 1, 2") == before
    text = str(found.value)
    for way in ("restore`", "replay`", "extend-back`", "epochline accept-state orders --reason …`"):
        assert f"`{way}" in text
    assert way_on(text) == "plan orders"
    return text


@pytest.mark.parametrize("mode", MODES)
def test_a_target_that_was_renamed_away_stops_the_pipeline_and_migrate_makes_no_empty_one(
    bench: NewBench, mode: str
) -> None:
    """INV-9: the heads are past its rows. Named back, it goes on."""
    it = bench(**MODES[mode]).after(ROWS)
    it.sql("ALTER TABLE t RENAME TO t_old")

    assert "it is named public.t_old now" in stands(it, "target t is gone")
    with pytest.raises(TargetError, match="target t is gone"):
        migrate(it)

    it.sql("ALTER TABLE t_old RENAME TO t")
    it.epoch(*MORE)
    assert {row[0] for row in it.rows()} >= {"c"}


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_was_made_again_stops_the_pipeline_until_an_operator_accepts_it(
    bench: NewBench, mode: str
) -> None:
    """INV-9: by plan and by the commit of an epoch that was sealed before."""
    it = bench(**MODES[mode]).after(ROWS)
    sealed = it.sealed(*MORE)
    it.sql(MADE_AGAIN)

    with pytest.raises(PipelineStandsError, match="is another table than the one that epochs wrote"):
        it.commit(sealed)
    assert it.sql("SELECT count(*) FROM t") == [(0,)]
    act(it, "accept-state")
    it.commit(sealed)

    assert it.rows() == [("c", 2)]
    it.epoch(kv("d", 3))
    assert it.sql("SELECT reason, before ? 't' FROM epochline.action") == [("the transform was wrong", True)]
    with pytest.raises(ActionRefusedError, match="there is nothing to accept"):
        act(it, "accept-state")


def test_a_lost_table_is_made_again_once_its_loss_is_accepted(bench: NewBench) -> None:
    it = bench(**UPSERT).after(ROWS)
    it.sql("DROP TABLE t")
    stands(it, "target t is gone")

    act(it, "accept-state")

    assert migrate(it) == ["t"]
    it.epoch(*MORE)
    assert it.rows() == [("c", 2)]


@pytest.mark.parametrize("mode", ["append", "append with a key", "upsert", "replace"])
def test_a_copy_with_the_rows_of_the_newest_epoch_is_the_target_as_after_a_dump(bench: NewBench, mode: str) -> None:
    """The oid is another one; the lineage tells that the content is right. A partial copy is refused."""
    it = bench(**MODES[mode]).after(ROWS, MORE)
    it.sql(f"{MADE_AGAIN}; INSERT INTO t SELECT * FROM t_old WHERE _epoch = 1")
    if mode != "replace":
        stands(it, "it has no row of epoch 2")

    it.sql("INSERT INTO t SELECT * FROM t_old WHERE _epoch = 2")
    it.epoch(kv("d", 3))

    assert it.sql("SELECT max(_epoch) FROM t") == [(3,)]
    assert it.sql("SELECT relation = 't'::regclass FROM epochline.target WHERE table_name = 't'") == [(True,)]


def test_what_later_epochs_deleted_is_not_missed_in_a_copy(bench: NewBench) -> None:
    it = bench(**UPSERT)
    for rows in (ROWS, MORE, [gone("c")]):
        it.epoch(*rows)
    it.sql(MADE_AGAIN)

    stands(it, "it has no row of epoch 1")

    it.sql("INSERT INTO t SELECT * FROM t_old")
    it.epoch(kv("d", 3))
    assert [k for k, _ in it.rows()] == ["a", "b", "d"]


@pytest.mark.parametrize("mode", ["upsert", "add"])
def test_a_target_that_was_emptied_stops_the_pipeline(bench: NewBench, mode: str) -> None:
    it = bench(**MODES[mode]).after(ROWS)

    it.sql("TRUNCATE t")

    stands(it, "is empty, although epochs up to 1 left rows there")


def test_a_target_whose_rows_its_epochs_deleted_goes_on(bench: NewBench) -> None:
    it = bench(**UPSERT).after(ROWS, [gone("a"), gone("b")])

    it.epoch(*MORE)

    assert it.rows() == [("c", 2)]


def test_an_append_target_that_a_consumer_empties_goes_on(bench: NewBench) -> None:
    it = bench().after(ROWS)
    it.sql("DELETE FROM t")

    it.epoch(*MORE)

    assert it.rows() == [("c", 2)]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_lost_table_of_deleted_keys_stops_the_pipeline(bench: NewBench, again: bool) -> None:
    """INV-9: without it an older record brings a deleted key back."""
    it = bench(**UPSERT, order_by="v").after([kv("a", 5), kv("b", 5)], [kv("a", 6, _deleted=True)])
    ((side,),) = it.sql("SELECT relname FROM pg_class WHERE relname LIKE 'deleted\\_%' AND relkind = 'r'")
    it.sql(f"ALTER TABLE epochline.{side} RENAME TO kept")
    if again:
        it.sql(f"CREATE TABLE epochline.{side} (LIKE epochline.kept INCLUDING ALL)")

    stands(it, "table of deleted keys")
    if not again:
        with pytest.raises(TargetError, match="table of deleted keys"):
            migrate(it)

    it.sql(f"DROP TABLE IF EXISTS epochline.{side}; ALTER TABLE epochline.kept RENAME TO {side}")
    it.epoch(kv("a", 4))
    assert it.rows() == [("b", 5)]


def test_an_image_whose_table_is_gone_puts_nothing_back_and_stops_no_commit(bench: NewBench) -> None:
    it = with_savepoint(bench, **UPSERT, before_images=1)
    it.epoch(kv("a", 7))
    ((image,),) = it.sql("SELECT table_name FROM epochline.before_image WHERE epoch_id = 2")
    it.sql(f"DROP TABLE epochline.{image}")

    with pytest.raises(ActionRefusedError, match="no before-images were kept of epoch 2"):
        act(it, "restore", name="before")

    it.epoch(kv("a", 8))
    it.epoch(kv("a", 9))
    assert ("a", 9) in it.rows()


def test_an_older_copy_goes_back_to_its_savepoint_and_is_read_on_from_there(bench: NewBench) -> None:
    """C12: the way that the refusal names for a target that cannot be brought back whole."""
    it = with_savepoint(bench, **UPSERT, before_images=5)
    it.sql("CREATE TABLE copy AS SELECT * FROM t")
    it.epoch(*MORE)
    whole = it.rows()
    it.sql(f"{MADE_AGAIN}; INSERT INTO t TABLE copy")
    stands(it, "it has no row of epoch 2")

    act(it, "accept-state")
    act(it, "restore", name="before")
    again(it, *MORE)

    assert it.rows() == whole


def test_a_replay_writes_the_rows_of_a_lost_append_target_again(bench: NewBench) -> None:
    """C13: the way that the refusal names where nothing is left of the table."""
    it = bench().after(ROWS, MORE)
    whole = it.rows()
    it.sql("DROP TABLE t")
    act(it, "accept-state")
    migrate(it)

    for epoch_id, rows in ((1, ROWS), (2, MORE)):
        replay = it.seal_staged(plan_replay(it.subject, epoch_id, run(f"replay-{epoch_id}")), *rows)
        promote(it.subject, epoch_of(replay), ORDER)

    assert it.rows() == whole
    it.epoch(kv("d", 3))


def test_a_target_without_rows_of_epochs_is_made_as_often_as_it_is_missing(bench: NewBench) -> None:
    it = bench()
    it.plan()
    it.sql("DROP TABLE t")

    assert migrate(it) == ["t"]
    it.epoch(*ROWS)
    assert len(it.rows()) == 2


def test_a_view_in_the_place_of_a_target_is_none(bench: NewBench) -> None:
    it = bench(**UPSERT).after(ROWS)

    it.sql("ALTER TABLE t RENAME TO t_old; CREATE VIEW t AS TABLE t_old")

    stands(it, "target t is gone")


def test_an_upgraded_ledger_knows_its_tables(bench: NewBench) -> None:
    """The claim of an existing table is of the table that has its name at the first plan after the upgrade."""
    it = bench(existing=f"CREATE TABLE t (k text PRIMARY KEY, v int{LINEAGE})", record=KV, **UPSERT).after(ROWS)
    it.sql("UPDATE epochline.target SET relation = NULL")

    it.epoch(*MORE)

    assert it.sql("SELECT relation = 't'::regclass FROM epochline.target") == [(True,)]


def test_rows_of_a_dropped_pipeline_stop_the_next_one_until_somebody_says_that_they_are_older(bench: NewBench) -> None:
    """INV-9: its records' positions are of another topic; the statement that the refusal names resets the order."""
    it = bench(**UPSERT).after([*ROWS, *MORE])
    act(it, "drop")
    new = Bench(it.dsn, it.sink, KV, create=False)
    new.pipeline = it.pipeline.model_copy(update={"name": "second"})
    new.create().kafka.produce("orders", 0, 2, topic_id="another")

    with pytest.raises(TargetError, match="t holds rows that another pipeline wrote") as refused:
        new.plan()

    assert it.sql("SELECT count(*) FROM epochline.epoch WHERE pipeline = 'second'") == [(0,)]
    it.sql(refused.value.said.partition("every record: ")[2])
    again(new, kv("a", 100), kv("b", 100))
    assert it.rows() == [("a", 100), ("b", 100), ("c", 2)]
