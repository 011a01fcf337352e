"""A publication FOR ALL TABLES changes nothing for tables of the product, and stops other targets in the plan."""

from functools import partial
from typing import Any

import pytest

from epochline import Json, KafkaTopic, PostgresTable, StateTable
from epochline.errors import ActionRefusedError, PipelineStandsError, RowsRefusedError
from epochline.local.stack import Stack
from tests.contract.worlds import orders
from tests.databases import as_admin, query
from tests.integration.bench import ADD, KV, LINEAGE, UPSERT, NewBench, kv
from tests.integration.in_process import over_records
from tests.integration.logins import superuser
from tests.integration.operating import ORDER, act, again, begun_at_the_end, extend_back, with_savepoint

WITHOUT_IDENTITY = """
    SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' AND c.relkind = 'r'
      AND c.relreplident <> 'f' AND NOT EXISTS (
          SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
"""
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {**UPSERT, "before_images": 5},
    "ordered": {**UPSERT, "order_by": "v", "before_images": 5},
    "add": {**ADD, "before_images": 5},
}


@pytest.fixture
def published(postgres_dsn: str, stack: Stack) -> str:
    """A database with a publication of all its tables, and of those that are made later."""
    as_admin(superuser(stack, postgres_dsn), "CREATE PUBLICATION everything FOR ALL TABLES")
    return postgres_dsn


@pytest.mark.parametrize("mode", MODES)
def test_every_operation_goes_on_in_a_published_database(published: str, bench: NewBench, mode: str) -> None:
    """Epochs, savepoint, restore, extend-back: the ledger, images and targets that the product makes take all."""
    it = with_savepoint(bench, **MODES[mode])
    it.epoch(kv("a", 7), kv("c", 7))
    whole = it.rows()

    act(it, "restore", name="before")
    again(it, kv("a", 7), kv("c", 7))

    assert it.rows() == whole
    assert it.sql(WITHOUT_IDENTITY) == []


def test_extend_back_goes_on_in_a_published_database(published: str, bench: NewBench) -> None:
    """It updates the chain, which has no primary key."""
    it = begun_at_the_end(bench, 2)
    it.epoch(kv("z", 9))

    assert extend_back(it, "a", "b") == ["orders-0[0, 2)"]
    assert [k for k, _ in it.rows()] == ["a", "b", "z"]


def test_every_table_of_the_product_has_a_replica_identity(published: str) -> None:
    """Of every kind: ledger, staging, outbox, deleted keys, images, state, savepoints, quarantine, targets."""
    modes = {**MODES, "whole": {"mode": "replace"}}
    sinks = [PostgresTable(table=name, columns=KV, **options) for name, options in modes.items()]
    pipeline = orders(parse=Json(columns=KV), sinks=sinks)
    records = [kv("a", 1)]
    job = over_records(published, pipeline, records)
    job.epoch()
    state = StateTable(table="seen", key="k", columns=KV)
    job.pipeline = pipeline.model_copy(update={"state": (state,), "transform": "pipelines.word_count:count"})
    job.create()
    job.act("savepoint", ORDER, name="of-state")
    records += [kv("a", 1)]
    job.source.produce("orders", 0, 1)
    job.attempt(*job.planned())
    topic = KafkaTopic(topic="out", value=Json(columns=KV))
    job.pipeline = pipeline.model_copy(update={"name": "sent", "sinks": (topic,)})
    job.create()
    kinds = query(published, "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname LIKE 'epochline%'")

    assert {kind for (kind,) in kinds} == {"epochline", "epochline_outbox", "epochline_staging"}
    assert query(published, WITHOUT_IDENTITY) == []


BY_AN_INDEX = f"CREATE TABLE t (k text NOT NULL UNIQUE, v int{LINEAGE})"
EXISTING = {
    "upsert by an index": (BY_AN_INDEX, UPSERT, ["public.t"]),
    "add by an index": ("CREATE TABLE t (k text NOT NULL UNIQUE, v int)", ADD, ["public.t"]),
    "replace": (f"CREATE TABLE t (k text, v int{LINEAGE})", {"mode": "replace"}, ["public.t"]),
    "partitions": (
        f"CREATE TABLE t (k text, v int{LINEAGE}) PARTITION BY LIST (k); CREATE TABLE t_a PARTITION OF t FOR VALUES IN"
        " ('a'); CREATE TABLE t_rest PARTITION OF t DEFAULT; ALTER TABLE t_a REPLICA IDENTITY FULL",
        {"mode": "replace"}, ["public.t_rest"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXISTING)
@pytest.mark.usefixtures("published")
def test_an_existing_target_without_an_identity_is_refused_in_the_plan_with_the_statement(
    bench: NewBench, case: str
) -> None:
    """INV-6: nothing is sealed that no run could commit."""
    ddl, options, tables = EXISTING[case]
    it = bench(existing=ddl, **options)
    statements = "; ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL" for one in tables)

    for attempt in (it.plan, it.preview):
        with pytest.raises(PipelineStandsError, match=f"does not have a replica identity.*Run {statements};"):
            attempt()

    it.sql(statements)
    it.epoch(kv("a", 1))
    it.epoch(kv("a", 2))
    assert it.rows()[0][0] == "a"


@pytest.mark.usefixtures("published")
def test_an_append_target_without_an_identity_goes_on_and_its_restore_is_refused(bench: NewBench) -> None:
    it = bench(existing=f"CREATE TABLE t (k text, v int{LINEAGE})").after([kv("a", 1)])
    act(it, "savepoint", name="before")
    it.epoch(kv("b", 2))

    with pytest.raises(ActionRefusedError, match=r"Run ALTER TABLE public\.t REPLICA IDENTITY FULL"):
        act(it, "restore", name="before")

    it.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    act(it, "restore", name="before")
    assert it.rows() == [("a", 1)]


OF_V = (
    "ALTER TABLE t ALTER v SET NOT NULL; CREATE UNIQUE INDEX of_v ON t (v);"
    " ALTER TABLE t REPLICA IDENTITY USING INDEX of_v; CREATE PUBLICATION later FOR TABLE t"
)
PUBLICATIONS = {
    "all tables": "CREATE PUBLICATION later FOR ALL TABLES",
    "its schema": "CREATE PUBLICATION later FOR TABLES IN SCHEMA public",
    "the table": "CREATE PUBLICATION later FOR TABLE t",
    "a row filter": f"{OF_V} WHERE (k <> 'x')",
    "a list of columns": f"{OF_V} (k)",
}  # fmt: skip


@pytest.mark.parametrize("publication", PUBLICATIONS)
@pytest.mark.parametrize("after", ["plan", "seal"])
def test_a_publication_that_is_made_while_an_epoch_runs_is_found_by_the_next_step(
    bench: NewBench, stack: Stack, publication: str, after: str
) -> None:
    """INV-6: before the seal nothing is sealed; after it the commit names the statement, and passes once it ran."""
    it, row = bench(existing=BY_AN_INDEX, **UPSERT), kv("a", 1)
    planned = it.plan(row) if after == "plan" else it.sealed(row)
    as_admin(superuser(stack, it.dsn), *PUBLICATIONS[publication].split(";"))

    next_step = partial(it.commit_staged, planned, row) if after == "plan" else partial(it.commit, planned)
    with pytest.raises((RowsRefusedError, PipelineStandsError), match="a publication of this database") as refused:
        next_step()

    assert isinstance(refused.value, RowsRefusedError) is (after == "plan")
    as_admin(superuser(stack, it.dsn), "DROP PUBLICATION later")
    if after == "seal":
        it.commit(planned)
        assert it.rows() == [("a", 1)]


def test_a_publication_of_inserts_alone_stops_nothing(bench: NewBench, stack: Stack) -> None:
    it = bench(existing=BY_AN_INDEX, **UPSERT)
    as_admin(superuser(stack, it.dsn), "CREATE PUBLICATION later FOR ALL TABLES WITH (publish = 'insert')")

    it.epoch(kv("a", 1))

    assert it.rows() == [("a", 1)]
