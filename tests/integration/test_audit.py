"""`epochline audit` on real PostgreSQL and Kafka: it finds what was planted, names it, and judges nothing it cannot."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from epochline import PostgresTable
from epochline.errors import RecordsRefusedError
from epochline.kafka.records import RecordReader
from tests.crash.watching import all_decided
from tests.integration.auditing import COLUMNS, NEWEST, ORDER, Audited, NewAudited, person
from tests.integration.kafka_topics import Topic, configure, delete_records, transactional_producer
from tests.integration.people import Patch

ROW = "INSERT INTO people (id, _topic, _partition, _offset, _row, _epoch) VALUES"


@pytest.fixture
def committed(audited: NewAudited) -> Audited:
    """Two epochs: 30 and 10 records in either partition, one of them quarantined."""
    one = audited()
    one.produce(0, [person(n) for n in range(30)], headers=[("h", b""), ("h", b"1")], key=b"k")
    one.produce(1, [*(person(n) for n in range(100, 129)), b"{poison"])
    one.world.epoch()
    one.produce(0, [person(n) for n in range(30, 40)])
    one.produce(1, [person(n) for n in range(130, 140)])
    one.world.epoch()
    return one


def test_an_exact_target_is_called_exact_with_progress_on_a_terminal(committed: Audited, monkeypatch: Patch) -> None:
    """INV-9: every record is accounted for, quarantined ones too, when its range is read again.

    Progress goes to standard error: what is read from a pipe is results alone.
    """
    code, differences, epochs = committed.audit()

    assert (code, differences) == (0, [])
    assert [(one["epoch_id"], one["verdict"]) for one in epochs] == [(1, "exact"), (2, "exact")]
    assert [(one["partition"], one["found"]["received"]) for one in epochs[0]["partitions"]] == [(0, 30), (1, 30)]

    assert committed.call("audit", committed.topic)[2] == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # how a pipe passes for a terminal
    _, out, err = committed.call("audit", committed.topic)
    assert ("auditing 2 epochs" in err, "80/80" in err, "auditing" in out) == (True, True, False)


def test_planted_damage_is_named_by_topic_partition_and_offset(committed: Audited) -> None:
    """A deleted, a doubled and an altered row, one that no record gave, and a quarantined record that is not kept."""
    committed.sql("DELETE FROM people WHERE _partition = 0 AND _offset = 7")
    committed.sql("INSERT INTO people SELECT * FROM people WHERE _partition = 1 AND _offset = 3")
    committed.sql("UPDATE people SET name = 'Eve', raw = '{\"z\":1 }' WHERE _partition = 0 AND _offset = 35")
    committed.sql("UPDATE people SET price = 1.5 WHERE _partition = 0 AND _offset = 36")
    committed.sql("DELETE FROM epochline.quarantined_record")
    committed.sql(f"{ROW} (1, 'other', 0, 5, 0, 2), (1, %s, 0, 5, 0, 9)", committed.topic)

    code, differences, epochs = committed.audit()

    assert code == 1
    assert sorted(differences) == [
        ("people", "changed", 0, 35, "name, raw"), ("people", "changed", 0, 36, "price"),
        ("people", "doubled", 1, 3, None), ("people", "extra", 0, 5, None), ("people", "extra", 0, 5, None),
        ("people", "missing", 0, 7, None), ("quarantine", "missing", 1, 29, None),
    ]  # fmt: skip
    assert [one["differences"] for one in epochs] == [3, 3]
    told, topic = committed.call("audit", committed.topic)[1], committed.topic
    for said in (f"missing: {topic}-0 offset 7 (epoch 1)", f"extra: {topic}-0 offset 5 (no committed epoch)"):
        assert f"people: {said}" in told
    assert "7 differences" in told
    assert "Eve" not in told


def test_only_the_epochs_that_are_named_are_looked_at(committed: Audited) -> None:
    committed.sql("DELETE FROM people WHERE _partition = 0 AND _offset = 7")

    assert [one["epoch_id"] for one in committed.audit("--epochs", "..1")[2]] == [1]
    for epochs, code in {"2": 0, "2..": 0, "1..2": 1, "one": 2, "7..9": 1, "0": 1}.items():
        assert committed.call("audit", committed.topic, "--epochs", epochs)[0] == code, epochs
    assert committed.call("audit", "nobody")[0] == 1


def test_a_ledger_that_was_altered_is_found(committed: Audited) -> None:
    """INV-9: digest and counts of the ledger are what Kafka gives."""
    committed.sql(
        "UPDATE epochline.planned_range SET source_digest = source_digest - 1 WHERE epoch_id = 1 AND partition = 0;"
        "UPDATE epochline.planned_range SET records_read = records_read - 1, records_passed = records_passed - 1"
        " WHERE epoch_id = 2 AND partition = 1"
    )

    code, differences, _ = committed.audit()

    assert code == 1
    # The epoch's own count is no more the sum of its ranges.
    assert [one[:3] for one in differences] == [
        ("ledger", "digest", 0),
        ("ledger", "count", 1),
        ("ledger", "count", None),
    ]
    assert differences[1][4] == "[30, 40): records read 9 in the ledger, 10 now; passed 9 in the ledger, 10 now"


def test_what_kafka_holds_no_more_is_listed_and_not_judged(committed: Audited) -> None:
    """F25, F26: after retention the rest is judged; of a topic made again nothing, since only its id tells it apart."""
    delete_records(committed.bootstrap, committed.topic, {0: 12})
    committed.sql("DELETE FROM people WHERE _partition = 0 AND _offset = 7")

    code, differences, epochs = committed.audit()

    assert (code, differences) == (3, [])
    assert [one["not_judged"] for one in epochs[0]["partitions"]] == [["not retained: offsets [0, 12)"], []]
    assert [one["verdict"] for one in epochs] == ["not judged wholly", "exact"]
    committed.sql("DELETE FROM people WHERE _partition = 0 AND _offset = 12")
    assert committed.audit()[:2] == (1, [("people", "missing", 0, 12, None)])

    Topic(committed.bootstrap, committed.topic).make_again(2)
    committed.produce(0, [person(n) for n in range(500, 540)])

    code, differences, epochs = committed.audit()
    assert (code, differences) == (3, [])
    assert "was deleted and made again" in epochs[0]["partitions"][0]["not_judged"][0]


def epoch_of_transactions(one: Audited, *kept: bool) -> None:
    with transactional_producer(one.bootstrap, one.topic) as producer:
        for at, keep in enumerate(kept):
            producer.begin_transaction()
            for number in range(5):
                producer.send(one.topic, person(at * 5 + number), key=b"k", partition=0)
            producer.flush()
            producer.commit_transaction() if keep else producer.abort_transaction()
    all_decided(one.bootstrap, one.topic)
    one.world.epoch()


def test_what_compaction_took_is_not_judged(audited: NewAudited) -> None:
    """Of a compacted topic fewer records than then are no difference, and neither is the row of one that is gone."""
    one = audited()
    configure(one.bootstrap, one.topic, **{"cleanup.policy": "compact"})
    epoch_of_transactions(one, True, False)  # the range ends with aborted records and a marker
    # As if the marker's offset had held a record that compaction took since.
    for table in ("planned_range", "epoch"):
        one.sql(f"UPDATE epochline.{table} SET records_read = records_read + 1, records_passed = records_passed + 1")
    one.sql(f"{ROW} (6, %s, 0, 5, 0, 1)", one.topic)

    code, differences, (epoch,) = one.audit()

    assert (code, differences) == (3, [])
    note = "1 records have been compacted away: rows without a record are not judged"
    assert epoch["partitions"][0]["not_judged"] == [note]
    one.sql("DELETE FROM people WHERE _offset = 2")
    assert one.audit()[:2] == (1, [("people", "missing", 0, 2, None)])


def test_every_row_of_an_exploded_record_is_compared(audited: NewAudited, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "audit_lines.py").write_text(
        "import json, pyarrow as pa\n"
        "def parse(batch):\n"
        "    return pa.record_batch({'line': pa.array([json.loads(v) for v in batch.column('value').to_pylist()])})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sink = PostgresTable(table="lines", columns={"line": "text"})
    one = audited(sink, parse="audit_lines:parse", record={"line": "text"}, explode="line")
    one.produce(0, [b'["a", "b"]', b"[]", b'["c"]'])
    one.world.epoch()
    assert one.audit()[0] == 0
    one.sql("DELETE FROM lines WHERE line = 'b'")

    code, out, _ = one.call("audit", one.topic, "--json")

    assert code == 1
    missing = {"epoch_id": 1, "where": "lines", "kind": "missing", "partition": 0, "offset": 0, "row": 1, "said": None}
    assert json.loads(out.splitlines()[0])["difference"] == {**missing, "topic": one.topic}

    with monkeypatch.context() as broken:
        broken.setattr("audit_lines.parse", lambda batch: 1 / 0)
        code, _, epochs = one.audit()
    assert code == 1
    assert epochs[0]["sinks"][0]["said"] == "values not compared: today's parse fails: ZeroDivisionError"

    monkeypatch.delitem(sys.modules, "audit_lines")
    (tmp_path / "audit_lines.py").unlink()
    code, differences, epochs = one.audit()
    assert code == 1  # the number of rows is still known
    assert [(d[1], d[4]) for d in differences] == [("count", "3 rows were sealed, 2 are there")]
    assert "cannot be imported" in epochs[0]["sinks"][0]["said"]


def test_targets_without_a_row_per_record_and_epoch_are_compared_at_the_end(audited: NewAudited) -> None:
    one = audited(
        NEWEST,
        PostgresTable(table="sums", mode="add", key="name", measures="id", columns={"name": "text", "id": "bigint"}),
        PostgresTable(table="bare", columns={"id": "bigint"}, lineage=False),
        PostgresTable(table="people", columns=COLUMNS),
    )
    one.produce(0, [person(1), person(1, name="y"), person(3, name=None)])
    one.world.epoch()

    code, differences, (epoch,) = one.audit()

    assert (code, differences) == (0, [])
    state = "the last state of each key is compared after the last epoch"
    expected = [("newest", state), ("sums", state), ("bare", "rows are compared after the last epoch")]
    assert [(sink["sink"], sink["said"]) for sink in epoch["sinks"]] == [*expected, ("people", None)]
    assert epoch["partitions"][0]["found"]["quarantined"] == 1


@pytest.mark.parametrize(
    ("loss", "said", "offsets"),
    [
        ("DELETE FROM newest WHERE id = 1", "has 2 rows, and its epochs left at least 3", [3]),
        ("DELETE FROM newest", "is empty, although epochs up to 1 left rows there", [1, 2, 3]),
        ("ALTER TABLE newest RENAME TO away", "is gone: it is named public.away now", []),
        ("CREATE TABLE other (LIKE newest INCLUDING ALL); DROP TABLE newest; ALTER TABLE other RENAME TO newest",
         "is another table than the one that epochs wrote: it has no row of epoch 1", [1, 2, 3]),
    ],
    ids=["a key", "every row", "renamed", "made again"],
)  # fmt: skip
def test_rows_that_an_upsert_target_lacks_are_found(
    audited: NewAudited, loss: str, said: str, offsets: list[int]
) -> None:
    """INV-9: the last record of each key without a row is named, and the epochs say how many rows they left."""
    one = audited(NEWEST)
    one.produce(0, [person(1), person(2), person(3), person(1, name="y")])
    one.world.epoch()
    assert one.audit()[:2] == (0, [])
    one.sql(loss)

    code, differences, _ = one.audit()

    missing = [("newest", "missing", 0, offset, None) for offset in offsets]
    assert (code, differences) == (1, [*missing, ("newest", "missing", None, None, said)])
    one.world.act("accept-state", ORDER)
    assert one.audit()[:2] == (3, [])  # what an operator accepted is not judged


def test_a_table_that_was_altered_is_not_judged(committed: Audited) -> None:
    """F34 after the fact: values of another type prove nothing."""
    committed.sql("ALTER TABLE people ALTER id TYPE text, ADD mine text DEFAULT 'x'")

    code, differences, epochs = committed.audit()

    assert (code, differences) == (3, [])
    assert epochs[0]["sinks"][0]["said"] == "values not compared: since the epoch the table's columns changed: id"


def test_superseded_generations_and_declared_losses_are_shown(committed: Audited) -> None:
    committed.sql(
        "UPDATE epochline.pipeline SET generation = 2;"
        "INSERT INTO epochline.committed_range SELECT pipeline, generation, topic, topic_id, partition, until_offset,"
        " until_offset + 5, NULL, 'declared loss' FROM epochline.committed_range WHERE until_offset = 40 AND partition = 0"
    )

    out = committed.call.shown("audit", committed.topic)

    assert "generation 1: superseded" in out
    assert f"{committed.topic}-0: offsets [40, 45) were declared lost (generation 1)" in out


def test_rows_of_a_requeue_are_compared_with_the_records_that_it_claimed(committed: Audited) -> None:
    """A requeue has no range: its records are in the quarantine, which still holds them."""
    committed.sql("UPDATE epochline.quarantined_record SET value = %s", person(7))
    assert committed.audit("--epochs", 1)[1] == [("quarantine", "changed", 1, 29, None)]
    committed.sql(
        'INSERT INTO epochline.epoch SELECT (jsonb_populate_record(e, \'{"epoch_id": 3, "kind": "requeue"}\')).*'
        " FROM epochline.epoch e WHERE epoch_id = 2;"
        "INSERT INTO epochline.planned_target SELECT pipeline, 3, sink, columns FROM epochline.planned_target"
        " WHERE epoch_id = 2;"
        'INSERT INTO epochline.requeue_claim SELECT pipeline, 3, generation, topic_id, partition, "offset"'
        " FROM epochline.quarantined_record;"
        "UPDATE epochline.quarantined_record SET requeued_by = 3, requeued_at = now()"
    )
    assert committed.audit("--epochs", 3)[1] == [("people", "missing", 1, 29, None)]
    committed.sql(
        "INSERT INTO people SELECT 7, 'näme 7', price, seen, extra, raw, _topic, 1, 29, 0, 3 FROM people"
        " WHERE _partition = 0 AND _offset = 7"
    )

    code, differences, (epoch,) = committed.audit("--epochs", 3)

    assert (code, differences) == (0, [])
    assert epoch["notes"] == ["1 records by claims, no range"]
    committed.sql("UPDATE people SET id = 8 WHERE _epoch = 3")
    assert committed.audit("--epochs", 3)[1] == [("people", "changed", 1, 29, "id")]


def test_an_audit_takes_committed_rows_alone_and_compares_groups(committed: Audited, monkeypatch: Patch) -> None:
    """Bounded memory: groups of few epochs and chunks of few records find what one look finds."""
    committed.produce(0, [person(1)])
    committed.world.staged()
    assert committed.audit()[:2] == (0, [])

    monkeypatch.setattr("epochline.audit.recorded._AT_ONCE", 1)
    monkeypatch.setattr("epochline.kafka.records.RecordReader", partial(RecordReader, records=7))
    committed.sql("DELETE FROM people WHERE _partition = 0 AND _offset IN (7, 33)")

    assert committed.audit()[:2] == (1, [("people", "missing", 0, 7, None), ("people", "missing", 0, 33, None)])


def test_what_the_operations_page_says_of_audits_works(committed: Audited) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = text.partition("## Auditing what is committed")[2].partition("\n## ")[0]
    commands, index = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("bash", "sql"))
    assert commands is not None
    assert index is not None

    committed.sql(index[1].replace("access_log", "people"))
    for command in commands[1].splitlines():
        name, *arguments = command.replace("access_log", committed.topic).split()
        assert name == "epochline"
        assert committed.call(*arguments)[0] == 0, command


def test_records_that_the_target_refused_are_expected_in_the_quarantine(audited: NewAudited) -> None:
    """I1: of an epoch and of a requeue that met the same record again, before the rule was mended and after."""
    one = audited()
    one.sql("ALTER TABLE people ADD CONSTRAINT few CHECK (id < 100)")
    one.produce(0, [person(1), person(100), person(2)])
    planned, run = one.world.planned()
    with pytest.raises(RecordsRefusedError, match=r"-0 offset 1 for people: check few"):
        one.world.staged_and_sealed(planned, run)
    one.world.finish(planned, run)

    assert one.audit()[:2] == (0, [])
    one.sql("ALTER TABLE people DROP CONSTRAINT few")
    run = replace(run, run_id="an operator's")
    one.world.finish(one.world.order("requeue", ORDER, run, everything=True), run)

    assert one.sql("SELECT id FROM people ORDER BY id") == [(1,), (2,), (100,)]
    assert one.audit()[:2] == (0, [])
