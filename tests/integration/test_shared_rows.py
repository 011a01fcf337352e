"""A claim covers every table that shares rows with the target: parents, partitions, heirs, and a new name of it."""

from collections.abc import Callable
from typing import Any

import pytest

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import EpochlineError, TargetError
from epochline.postgres.targets import tables, together
from tests.databases import query
from tests.driver import epoch_of
from tests.integration.bench import ADD, IN_PUBLIC, KV, LINEAGE, UPSERT, NewBench, kv
from tests.integration.in_process import InProcess, over_records
from tests.integration.logins import AsSuperuser
from tests.integration.operating import act

COLUMNS = f"k text NOT NULL, v integer{LINEAGE}"
PARTITIONED = f"""
    CREATE TABLE t ({COLUMNS}) PARTITION BY LIST (k);
    CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a');
    CREATE TABLE t_rest PARTITION OF t DEFAULT PARTITION BY LIST (v);
    CREATE TABLE t_rest_all PARTITION OF t_rest DEFAULT;
    CREATE TABLE one ({COLUMNS}); CREATE TABLE two ({COLUMNS}); CREATE TABLE heir () INHERITS (one, two);
"""


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    query(postgres_dsn, PARTITIONED, options=IN_PUBLIC)
    return postgres_dsn


def writing(dsn: str, name: str, *tables: str) -> InProcess:
    """A pipeline with one record for each of these tables, in mode replace, which deletes every row."""
    sinks = [PostgresTable(table=table, mode="replace") for table in tables]
    declared = Pipeline(name=name, source=KafkaSource(topics=name), parse=Json(columns=KV), sinks=sinks)
    row = kv("b" if any("rest" in table for table in tables) else "a", 1)
    return over_records(dsn, declared, [row], create=False)


OVERLAPS = [
    ("t", "t_a"), ("t_a", "t"), ("t", "t_rest_all"), ("t_rest_all", "t"), ("t_rest", "t_rest_all"), ("one", "heir"),
    ("heir", "two"), ("one", "two"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), OVERLAPS)
def test_rows_of_another_pipelines_target_are_not_claimed(dsn: str, first: str, second: str) -> None:
    """INV-2: at the plan, at its preview, and by one declaration with two sinks."""
    writing(dsn, "first", first).epoch()
    other = writing(dsn, "second", second)

    for attempt in (other.epoch, other.preview):
        with pytest.raises(TargetError, match=f"{second} shares rows with public.{first}, which belongs to pipeline f"):
            attempt()
    both = writing(dsn, "both", first, second)
    query(dsn, "DELETE FROM epochline.target")
    for attempt in (both.epoch, both.preview):
        with pytest.raises(TargetError, match="which this pipeline writes as well"):
            attempt()

    assert query(dsn, f"SELECT v FROM public.{first}") == [(1,)]


def test_two_partitions_share_no_row(dsn: str) -> None:
    query(dsn, "CREATE TABLE t_b PARTITION OF t FOR VALUES IN ('b')", options=IN_PUBLIC)
    writing(dsn, "first", "t_a").epoch()

    with pytest.raises(TargetError, match="shares rows with public.t_a"):
        writing(dsn, "parent", "t").epoch()
    query(dsn, "ALTER TABLE t DETACH PARTITION t_a", options=IN_PUBLIC)

    writing(dsn, "second", "t_rest_all").asked_to_plan()
    assert query(dsn, "SELECT count(*) FROM epochline.target") == [(2,)]


def test_a_partition_that_is_attached_after_the_claim_stops_both_pipelines_and_their_sealed_epochs(dsn: str) -> None:
    """INV-2: until it is detached again."""
    query(dsn, f"CREATE TABLE later ({COLUMNS})", options=IN_PUBLIC)
    one, two = writing(dsn, "first", "t"), writing(dsn, "second", "later")
    sealed = [job.sealed()[0] for job in (one, two)]
    query(dsn, "ALTER TABLE t ATTACH PARTITION later FOR VALUES IN ('l')", options=IN_PUBLIC)

    for job, planned in zip((one, two), sealed, strict=True):
        with pytest.raises(TargetError, match="shares rows with"):
            job.commit(planned)

    query(dsn, "ALTER TABLE t DETACH PARTITION later", options=IN_PUBLIC)
    for job, planned in zip((one, two), sealed, strict=True):
        job.commit(planned)
    assert query(dsn, "SELECT (SELECT count(*) FROM public.t), count(*) FROM public.later") == [(1, 1)]


def test_a_target_under_a_new_name_is_not_claimed(dsn: str) -> None:
    query(dsn, f"CREATE TABLE plain ({COLUMNS})", options=IN_PUBLIC)
    writing(dsn, "first", "plain").epoch()
    query(dsn, "ALTER TABLE plain RENAME TO renamed; UPDATE renamed SET _epoch = NULL", options=IN_PUBLIC)

    with pytest.raises(TargetError, match=r"renamed shares rows with public\.plain, which belongs to pipeline first"):
        writing(dsn, "second", "renamed").epoch()


KEYED = f"k text PRIMARY KEY, v integer{LINEAGE}"
MODES: dict[str, dict[str, Any]] = {
    "append": {}, "upsert": {**UPSERT, "before_images": 3}, "add": {**ADD, "before_images": 3},
    "replace": {"mode": "replace"},
}  # fmt: skip
FOREIGN = "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; SET search_path TO public;"
UNFIT = {
    "foreign partition": (
        f"CREATE TABLE t ({COLUMNS}) PARTITION BY LIST (k); CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a', 'b')",
        f"{FOREIGN} CREATE FOREIGN TABLE part (k text NOT NULL, v integer{LINEAGE}) SERVER s;",
        "ALTER TABLE t ATTACH PARTITION part FOR VALUES IN ('x')", "ALTER TABLE t DETACH PARTITION part",
    ),
    "unlogged partition of a partition": (
        f"CREATE TABLE t ({KEYED}) PARTITION BY LIST (k); CREATE TABLE t_rest PARTITION OF t DEFAULT PARTITION BY LIST (k);"
        " CREATE TABLE t_rest_all PARTITION OF t_rest DEFAULT",
        f"SET search_path TO public; CREATE UNLOGGED TABLE part ({KEYED});",
        "ALTER TABLE t_rest ATTACH PARTITION part FOR VALUES IN ('x')", "ALTER TABLE t_rest DETACH PARTITION part",
    ),
    "unlogged heir": (
        f"CREATE TABLE t ({KEYED})", f"SET search_path TO public; CREATE UNLOGGED TABLE part ({KEYED});",
        "ALTER TABLE part INHERIT t", "ALTER TABLE part NO INHERIT t",
    ),
    "foreign heir": (
        f"CREATE TABLE t ({KEYED})", f"{FOREIGN} CREATE FOREIGN TABLE part (k text NOT NULL, v integer{LINEAGE}) SERVER s;",
        "ALTER TABLE part INHERIT t", "ALTER TABLE part NO INHERIT t",
    ),
}  # fmt: skip
# A table with a unique index takes no foreign partition, and no server answers to read the rows of a foreign heir.
FITTING = [(unfit, mode) for unfit in UNFIT for mode in MODES if "foreign" not in unfit or "key" not in MODES[mode]]


@pytest.mark.parametrize(("unfit", "mode"), FITTING)
def test_rows_that_do_not_commit_with_the_ledger_or_survive_a_crash_are_refused_by_name(
    bench: NewBench, as_superuser: AsSuperuser, mode: str, unfit: str
) -> None:
    """INV-2: at the plan, the seal, the commit and a restore; without them, the epoch goes on."""
    table, part, attach, detach = UNFIT[unfit]
    it = bench(existing=table, **MODES[mode]).after([kv("a", 1)])
    act(it, "savepoint", name="first")
    as_superuser(part)

    def refused(step: Callable[[], object]) -> None:
        as_superuser(f"SET search_path TO public; {attach}")
        with pytest.raises(EpochlineError, match=r"the (foreign|unlogged) table public.part holds rows of it"):
            step()
        as_superuser(f"SET search_path TO public; {detach}")

    refused(lambda: it.plan(kv("b", 2)))
    planned = it.plan()
    ticket, run_of = it.stage(planned, kv("b", 2)), epoch_of(planned).run
    refused(lambda: it.seal(ticket, run_of))
    it.seal(ticket, run_of)
    refused(lambda: it.commit(planned))
    it.commit(planned)
    assert ("b", 2) in it.rows()
    if mode != "replace":
        refused(lambda: act(it, "restore", name="first"))
        act(it, "restore", name="first")
        assert it.rows() == [("a", 1)]


def test_a_foreign_partition_that_is_attached_within_the_commit_is_refused(
    bench: NewBench, as_superuser: AsSuperuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-2: ATTACH waits for no writer."""
    table, part, attach, detach = UNFIT["foreign partition"]
    it = bench(existing=table)
    planned = it.sealed(kv("a", 1))
    as_superuser(part)
    apply = together.apply_together

    def attached(*given: Any, **more: Any) -> Any:
        as_superuser(f"SET search_path TO public; {attach}")
        return apply(*given, **more)

    monkeypatch.setattr(tables, "apply_together", attached)
    with pytest.raises(TargetError, match="the foreign table public.part"):
        it.commit(planned)

    as_superuser(f"SET search_path TO public; {detach}")
    assert it.rows() == []
