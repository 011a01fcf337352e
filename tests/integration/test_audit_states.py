"""`epochline audit` of targets that are compared after the last epoch, on real servers.

The last record of each key, sums, the newest epoch's rows, and rows that name no epoch.
"""

from pathlib import Path
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.audit.findings import EpochResult
from epochline.audit.run import audit
from epochline.kafka.records import RecordReader
from tests.databases import query
from tests.driver import epoch_of
from tests.integration.auditing import COLUMNS, NEWEST, ORDER, Audited, Findings, NewAudited, person
from tests.integration.kafka_topics import delete_records

SUMS = PostgresTable(
    table="sums", mode="add", key="name", measures=("id", "price"),
    columns={"name": "text", "id": "bigint", "price": "numeric"},
)  # fmt: skip
BY_TIME = PostgresTable(table="latest", mode="upsert", key="id", order_by="seen", columns=COLUMNS)
REPLACED = PostgresTable(table="replaced", mode="replace", columns=COLUMNS)
BARE = PostgresTable(table="bare", columns={"id": "bigint", "name": "text"}, lineage=False)
ONCE = PostgresTable(table="once", columns=COLUMNS, key="id", repeats="skip", lineage=False)
PLAIN = PostgresTable(table="plain", mode="upsert", key="id", columns=COLUMNS, lineage=False)


@pytest.fixture
def committed(audited: NewAudited) -> Audited:
    """Two epochs: each key has several records, one of them an older time later."""
    one = audited(NEWEST, BY_TIME, PLAIN, SUMS)
    one.produce(0, [*(person(n) for n in range(5)), person(1, name="y", seen="2024-01-01T00:00:00Z")])
    one.world.epoch()
    one.produce(0, [person(2, name="z"), person(7), person(3, name="w", seen="2023-01-01T00:00:00Z")])
    one.produce(1, [person(n) for n in range(10, 15)])
    one.world.epoch()
    return one


def found(one: Audited, *arguments: Any) -> tuple[int, list[tuple[Any, ...]]]:
    code, differences, _ = one.audit(*arguments)
    return code, differences


def test_the_last_state_of_each_key_and_its_sums_are_compared(committed: Audited) -> None:
    """INV-9: a row that is missing, altered, of an older record, or of no record is named by the record's place."""
    assert found(committed) == (0, [])
    committed.sql(
        "UPDATE newest SET name = 'näme 2' WHERE id = 2; DELETE FROM newest WHERE id = 12;"
        " INSERT INTO newest (id, _epoch) VALUES (99, 2), (98, NULL);"
        " UPDATE latest SET name = 'w' WHERE id = 3; UPDATE plain SET price = 9 WHERE id = 3;"
        " UPDATE sums SET id = id + 1 WHERE name = 'näme 10'; DELETE FROM sums WHERE name = 'z'"
    )

    code, differences = found(committed)

    assert code == 1
    assert sorted(differences, key=str) == sorted(
        [
            ("newest", "changed", 0, 6, "name"), ("newest", "missing", 1, 2, None),
            ("newest", "extra", None, None, "1 rows"), ("latest", "changed", 0, 3, "name"),
            ("plain", "changed", 0, 8, "price"), ("sums", "changed", None, None, "1 rows: id"),
            ("sums", "missing", None, None, "1 rows"),
        ],
        key=str,
    )  # fmt: skip


def test_a_key_that_its_last_record_deleted_has_no_row(
    audited: NewAudited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that is not in the target is found; the record of a later epoch brings a key back."""
    (tmp_path / "audit_pairs.py").write_text(
        "import json, pyarrow as pa\n"
        "def parse(batch):\n"
        "    rows = [json.loads(v) for v in batch.column('value').to_pylist()]\n"
        "    names = ('id', 'name', '_deleted')\n"
        "    return pa.record_batch({n: pa.array([r.get(n, n == '_deleted' and False) for r in rows]) for n in names})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    columns = {"id": "bigint", "name": "text"}
    sink = PostgresTable(table="pairs", mode="upsert", key="id", columns=columns)
    one = audited(sink, parse="audit_pairs:parse", record=columns)
    one.produce(0, [b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "b"}', b'{"id": 3, "name": "c"}'])
    one.world.epoch()
    one.sql("CREATE TABLE kept AS SELECT * FROM pairs")
    one.produce(0, [b'{"id": %d, "name": null, "_deleted": true}' % n for n in (1, 2, 4)])
    one.world.epoch()
    one.produce(0, [b'{"id": 2, "name": "again"}'])
    one.world.epoch()
    assert found(one) == (0, [])
    one.sql("INSERT INTO pairs SELECT * FROM kept WHERE id = 1")

    assert found(one) == (1, [("pairs", "extra", 0, 3, None)])


def test_a_state_of_which_records_are_gone_is_not_called_exact(committed: Audited) -> None:
    """A state is of all records: without some, or over some epochs, or where it was accepted, it is not judged."""
    assert found(committed, "--epochs", "2") == (3, [])
    committed.sql("DELETE FROM newest")
    assert found(committed)[0] == 1
    committed.world.act("accept-state", ORDER)
    code, out, _ = committed.call("audit", committed.topic)
    assert (code, "newest: last states not compared: an operator accepted" in out) == (3, True)
    delete_records(committed.bootstrap, committed.topic, {0: 2})
    committed.sql("UPDATE sums SET id = 0")

    code, out, _ = committed.call("audit", committed.topic)

    assert code == 3
    assert f"plain: last states not compared: {committed.topic}-0 is not held from its first record" in out


def test_the_newest_epochs_rows_and_rows_that_name_no_epoch_are_compared_as_they_are(audited: NewAudited) -> None:
    """INV-9: mode replace, and append without lineage, with and without a key; an epoch was aborted between."""
    one = audited(REPLACED, BARE, ONCE)
    one.produce(0, [person(1), person(2), person(2, name="y")])
    one.world.epoch()
    one.produce(0, [person(3), person(3), person(1, name="z")])
    planned, run, _ = one.world.staged()
    one.world.abort(epoch_of(planned).epoch_id, run, reason="a crash", by_operator=True)
    one.world.epoch()
    assert found(one) == (0, [])
    assert found(one, "--epochs", "2..") == (3, [])
    one.sql(
        "UPDATE replaced SET price = 2 WHERE name = 'z'; INSERT INTO replaced SELECT * FROM replaced WHERE name = 'z';"
        " DELETE FROM bare WHERE name = 'y'; INSERT INTO bare SELECT * FROM bare WHERE id = 3; INSERT INTO bare VALUES (9);"
        " UPDATE once SET name = 'other' WHERE id = 1; DELETE FROM once WHERE id = 3"
    )

    code, differences = found(one)

    assert code == 1
    assert sorted(differences, key=str) == sorted(
        [
            ("replaced", "changed", 0, 5, "price"), ("replaced", "doubled", 0, 5, None), ("bare", "missing", 0, 2, None),
            ("bare", "doubled", 0, 3, "2 rows"), ("bare", "extra", None, None, "1 rows"),
            ("once", "changed", 0, 0, "name"), ("once", "missing", 0, 3, None),
        ],
        key=str,
    )  # fmt: skip


def test_rows_that_a_table_without_lineage_had_before_are_not_accused(audited: NewAudited, postgres_dsn: str) -> None:
    query(postgres_dsn, "CREATE TABLE mine (id bigint, name text); INSERT INTO mine VALUES (7, 'before')")
    one = audited(PostgresTable(table="mine", lineage=False))
    one.produce(0, [person(1)])
    one.world.epoch()

    code, out, _ = one.call("audit", one.topic)

    assert (code, "mine: rows not compared: it has rows of no record" in out) == (3, True), out
    one.sql("DELETE FROM mine WHERE id = 1")
    assert found(one) == (1, [("mine", "missing", 0, 0, None)])


def test_rows_without_a_place_that_were_forgotten_are_not_accused(audited: NewAudited) -> None:
    one = audited(BARE, SUMS)
    one.produce(0, [person(1), person(2)])
    one.world.epoch()
    one.call("forget", one.topic, "name=näme 1", "--target", "--reason", "article 17", "--yes")
    assert one.sql("SELECT id FROM bare") + one.sql("SELECT name FROM sums") == [(2,), ("näme 2",)]

    code, out, _ = one.call("audit", one.topic)

    assert code == 3, out
    assert "bare: rows not compared: rows that name no record were erased on " in out
    assert "sums: last states not compared: rows that name no record were erased on " in out


def test_a_state_that_an_epoch_changed_meanwhile_is_not_accused(audited: NewAudited) -> None:
    """An audit may run beside the pipeline: what commits after its start is none of its epochs."""
    one = audited(NEWEST)
    one.produce(0, [person(1)])
    one.world.epoch()

    class Commits(Findings):
        def epoch(self, result: EpochResult) -> None:
            one.produce(0, [person(1, name="y"), person(2)])
            one.world.epoch()

    summary = audit(one.world.dsn, RecordReader({"bootstrap.servers": one.bootstrap}), one.topic, told := Commits())

    assert told.said == []
    assert summary.not_judged_targets == ("newest",)
    assert "an epoch was committed meanwhile" in summary.notes[-1]
