"""`forget` on real PostgreSQL: afterwards no column of any table and no file has the value, and everything else has stayed.

The value is searched for by a scan that knows nothing of the product: every table of the database, every file.
"""

import base64
import json
import logging
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql

from epochline import Bounds, Json, KafkaSource, KafkaTopic, Measure, Pipeline, PostgresTable, Regex, Settings, Text
from epochline.audit.findings import EpochResult
from epochline.audit.run import audit
from epochline.coordinator.epoch_file import leave_file
from epochline.errors import ActionRefusedError, SavepointFileError
from epochline.kafka.records import RecordReader
from epochline.operations import ACTIONS, DAG_ACTIONS, Request
from epochline.operations.replay import plan_replay
from epochline.postgres.ledger.savepoint_file import write_file
from tests.databases import query, set_aside
from tests.integration.auditing import Findings, NothingLeft, audited
from tests.integration.bench import UPSERT, NewBench, kv
from tests.integration.counting import Counting
from tests.integration.guarantee import broken
from tests.integration.in_process import InProcess, over_records
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.operating import exported, imported
from tests.integration.sinks_world import in_process, new_world
from tests.processes.client import fork_server
from tests.waiting import wait_until

HERS = "ada.5c1e@example.org"
OTHER = "bob.77aa@example.org"
PUT_THERE = [f"quarantine: extra: orders-0 offset {offset} (epoch 1)" for offset in (100, 101, 102)]
"""What an audit says of records that a test put into the quarantine, whether they have their bytes or not."""
WHY = Request(actor="eve", reason="article 17, ticket 8")
TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'
"""


def found(dsn: str, value: str, *folders: Path) -> list[str]:
    """Every table of the database and every file in which the value is, as a text or as bytes."""
    places = []
    for schema, table in query(dsn, TABLES):
        statement = "SELECT count(*) FROM {} t WHERE strpos(t::text, {}) > 0 OR strpos(t::text, {}) > 0"
        parts = sql.Identifier(schema, table), sql.Literal(value), sql.Literal(value.encode().hex())
        ((rows,),) = query(dsn, sql.SQL(statement).format(*parts))
        places += [f"{schema}.{table}"] * bool(rows)
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        if zipfile.is_zipfile(BytesIO(content)):
            with zipfile.ZipFile(file) as archive:
                content = b"".join(archive.read(name) for name in archive.namelist())
        places += [str(file)] * (value.encode() in content)
    return places


def forget(it: Any, *key: str, **asked: Any) -> list[str]:
    return list(it.act("forget", WHY, key=list(key), **asked).lines)


def previewed(it: Any, *key: str, **asked: Any) -> list[str]:
    action = ACTIONS["forget"]
    preview = action.preview(it.subject, action.parse({"key": list(key), **asked}))
    assert preview.refusal is None, preview.refusal
    return list(preview.lines)


def word(value: str, count: int, **more: Any) -> dict[str, Any]:
    return {"word": value, "count": count, **more}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def counting(postgres_dsn: str, home: Path) -> Counting:
    """Three epochs with state, before-images, a savepoint, files, quarantined and refused records, and errors."""
    it = Counting(postgres_dsn, postgres_dsn)
    it.pipeline = it.pipeline.model_copy(update={"settings": Settings(epoch_files="epochs")})
    it.after([word(HERS, 1), word(OTHER, 1)])
    it.act("savepoint", WHY, name="first")
    it.after([word(HERS, 2), word(OTHER, 2)], [word(HERS, 3), word("c", 1)])
    topic = it.sql("SELECT DISTINCT topic_id FROM epochline.heads")[0][0]
    set_aside(it.dsn, 100, topic_id=topic, value=f'{{"word": "{HERS}"', key=HERS, reason=f"no JSON: '{HERS}'")
    set_aside(it.dsn, 101, topic_id=topic, value=json.dumps({"payload": {"word": HERS}}))
    set_aside(it.dsn, 102, topic_id=topic, value=json.dumps({"word": OTHER}))
    query(
        it.dsn,
        "INSERT INTO epochline.refused_row (pipeline, epoch_id, attempt, generation, sink, \"row\", reason)"
        " VALUES ('orders', 1, 1, 1, 't', %s, %s), ('orders', 1, 1, 1, 't', %s, 'another')",
        json.dumps({"word": HERS}), f"{HERS} breaks a rule", json.dumps({"word": OTHER}),
    )  # fmt: skip
    query(it.dsn, "UPDATE epochline.attempt SET error = %s WHERE epoch_id = 1", f"BadRecordError: bad '{HERS}'")
    return it


def test_no_table_and_no_file_has_the_value_afterwards_and_epochs_go_on(counting: Counting, home: Path) -> None:
    """INV-2, INV-9: every other person's values stay, and state and targets are what the ledger says of them."""
    it = counting
    before, others, wrong = found(it.dsn, HERS, home), found(it.dsn, OTHER), broken(it.sql, "orders", "t")
    assert len(before) >= 8, before
    assert any(place.endswith(".zip") for place in before)

    said = forget(it, HERS, target=True)

    assert found(it.dsn, HERS, home) == []
    assert found(it.dsn, OTHER) == others
    assert "the key is forgotten by orders" in said
    assert it.counts() == [(OTHER, 2), ("c", 1)] == it.counts("t")
    it.epoch(word(OTHER, 5))
    assert it.counts("t") == [(OTHER, 5), ("c", 1)]
    assert it.audited() == PUT_THERE
    assert broken(it.sql, "orders", "t").keys() <= wrong.keys()
    ((actor, reason, after),) = it.sql("SELECT actor, reason, after FROM epochline.actions WHERE action = 'forget'")
    assert (actor, reason, after["columns"]) == ("eve", "article 17, ticket 8", ["word"])
    assert after["erased"] == {
        "quarantine": 2, "before-images of t": 3, "savepoint first, state words": 1, "state words": 1,
        "errors and refused rows": 2, "target t": 1,
    }  # fmt: skip


def test_a_restore_and_an_undo_bring_nothing_back(counting: Counting, home: Path) -> None:
    """And the preview says that what the source still has comes back with the epochs that read it again."""
    it = counting
    forget(it, HERS, target=True)
    action = ACTIONS["restore"]

    preview = action.preview(it.subject, action.parse({"name": "first"}))
    it.act("restore", WHY, name="first")

    assert any("eve (article 17, ticket 8): values were forgotten since" in line for line in preview.lines)
    assert found(it.dsn, HERS, home) == []
    assert it.counts() == [(OTHER, 1)] == it.counts("t")
    assert it.audited() == PUT_THERE


def test_a_target_with_before_images_is_not_left_apart_from_them(counting: Counting) -> None:
    """Without its images a restore would leave the row of an undone epoch: so both go, or nothing does."""
    it, before = counting, found(counting.dsn, HERS)

    with pytest.raises(
        ActionRefusedError, match="t still has rows of the key, and a restore puts their before-images back"
    ):
        forget(it, HERS)

    assert found(it.dsn, HERS) == before


def test_a_key_that_a_tombstone_deleted_needs_no_target(bench: NewBench) -> None:
    """Before-images and the table of deleted keys forget it, and an undo does not bring it back."""
    it = bench(**UPSERT, before_images=9).after([kv(HERS, 1), kv("b", 1)])
    it.act("savepoint", WHY, name="before")
    it.after([{"k": HERS, "_deleted": True}, kv("b", 2)])
    assert len(found(it.dsn, HERS)) == 5

    forget(it, HERS)

    assert found(it.dsn, HERS) == []
    it.act("restore", WHY, name="before")
    assert it.rows() == [("b", 1)]
    it.epoch(kv("b", 3))
    assert it.rows() == [("b", 3)]


@pytest.mark.parametrize("set_aside_by", [1, 2])
def test_a_restore_undoes_epochs_whose_quarantined_records_were_erased(bench: NewBench, set_aside_by: int) -> None:
    """Whether the undone epoch set the record aside or requeued it; what has no bytes waits for no requeue (INV-9)."""
    it = bench(**UPSERT, before_images=9).after([kv("a", 1)])
    it.act("savepoint", WHY, name="first")
    it.after([kv("b", 1)])
    ((topic,),) = it.sql("SELECT DISTINCT topic_id FROM epochline.heads")
    requeued: dict[str, Any] = {"requeued_by": 2, "requeued_at": "2026-01-01"} if set_aside_by == 1 else {}
    set_aside(it.dsn, 100, topic_id=topic, epoch_id=set_aside_by, key=HERS, **requeued)
    forget(it, HERS)

    it.act("restore", WHY, name="first")

    assert it.rows() == [("a", 1)]
    assert it.sql("SELECT requeued_by FROM epochline.quarantine") == [(1,)] * (set_aside_by == 1)
    assert found(it.dsn, HERS) == []


@pytest.mark.parametrize(
    ("kind", "given", "other"),
    [
        ("varchar(5)", "abcdefg", "abcde"), ("char(3)", "abcd", "abc"), ("numeric(10)", "7.4", "7"),
        ("numeric(10,2)", "1.004", "1"), ("timestamp(0)", "2026-01-01 10:00:00.4", "2026-01-01 10:00"),
        ("bit(3)", "1011", "101"), ("date", "2026-01-01 10:00", "2026-01-01"), ("real", "16777217", "16777216"),
        ("name", "x" * 64, "x" * 63), ("varchar(5)[]", "{abcdefg}", "{abcde}"),
    ],
)  # fmt: skip
def test_a_value_that_a_type_shortens_erases_no_row_of_another(
    bench: NewBench, kind: str, given: str, other: str
) -> None:
    it = bench().after([kv("x", 1)])
    query(it.dsn, f"ALTER TABLE t ALTER COLUMN k TYPE {kind} USING '{other}'::{kind}")

    if kind in ("date", "real", "name"):
        with pytest.raises(ActionRefusedError, match="target t: its columns shorten the value; write it as PostgreSQL"):
            forget(it, f"k={given}", target=True)
    else:
        forget(it, f"k={given}", target=True)
    assert it.sql("SELECT count(*) FROM t") == [(1,)]

    forget(it, f"k={it.sql('SELECT k::text FROM t')[0][0]}", target=True)
    assert it.sql("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize("key", ['say "hi"', "back\\slash", "new\nline", "O'Brien", 'é\u0301"', "a.b*c|"])
def test_a_value_is_found_as_json_and_errors_quote_it(bench: NewBench, key: str) -> None:
    it = bench(**UPSERT).after([kv(key, 1), kv("b", 1)])
    for value in (key, "b"):
        statement = (
            'INSERT INTO epochline.refused_row (pipeline, epoch_id, attempt, generation, sink, "row", reason)'
            " VALUES ('orders', 1, 1, 1, 't', %s, 'a rule')"
        )
        query(it.dsn, statement, json.dumps({"k": value}))
    query(it.dsn, "UPDATE epochline.attempt SET error = %s", f"bad {key!r}")
    query(it.dsn, "UPDATE epochline.epoch SET error = %s", f"bad {key}")

    forget(it, f"k={key}", target=True)

    assert it.sql('SELECT "row" FROM epochline.refused_row WHERE "row" IS NOT NULL') == [({"k": "b"},)]
    ((said,),) = it.sql("SELECT error FROM epochline.attempt UNION SELECT error FROM epochline.epoch")
    assert said.startswith("erased on ")
    assert it.rows() == [("b", 1)]


def test_a_number_in_what_the_bounds_said_is_erased(postgres_dsn: str) -> None:
    """It has commas there; and the approval of the epoch does not keep it a second time."""
    bounds = Bounds(measures=(Measure(name="newest", sql="SELECT max(n) FROM staged", most=1),))
    it = lines(postgres_dsn, b"a=31234", bounds=bounds)
    it.sealed()
    it.act("approve", WHY, epoch=1)
    it.commit(1)
    assert it.sql("SELECT outside FROM epochline.epochs") == [("newest is 31,234, at most 1 expected",)]

    forget(it, "n=31234", target=True)

    assert found(postgres_dsn, "31,234") == []


def test_a_target_alone_is_left_unless_it_is_asked_for(bench: NewBench) -> None:
    it = bench().after([kv(HERS, 1), kv("b", 1)])

    lines = previewed(it, f"k={HERS}")
    forget(it, f"k={HERS}")
    left = found(it.dsn, HERS)
    forget(it, f"k={HERS}", target=True)

    assert "target t: 1 row not erased; --target erases them" in lines
    ((told,),) = [[line] for line in lines if line.startswith("not erased: Kafka's topics")]
    assert "reasons that people gave" in told
    assert left == ["public.t"]
    assert found(it.dsn, HERS) == []


@pytest.mark.parametrize("mode", [UPSERT, {"mode": "add", "key": "k", "measures": "v"}], ids=["upsert", "add"])
def test_the_last_row_of_a_target_can_be_erased(bench: NewBench, mode: dict[str, Any]) -> None:
    """INV-9: an empty target would stop the pipeline; rows that were erased are due no more."""
    it = bench(**mode).after([kv(HERS, 1)], [kv(HERS, 2)])

    forget(it, HERS, target=True)

    assert it.rows() == []
    it.epoch(kv("b", 1))
    assert it.rows() == [("b", 1)]
    query(it.dsn, "DELETE FROM t")
    assert audited(it.dsn, "orders", NothingLeft()) != []


REGEX = Regex(pattern=r"(?P<who>\S+)=(?P<n>\d+)", columns={"who": "text", "n": "smallint"})


def lines(dsn: str, *values: bytes, **declared: Any) -> InProcess:
    given = {"parse": REGEX, "sinks": PostgresTable(table="t", columns={"who": "text", "n": "smallint"})} | declared
    source = KafkaSource(topics="orders")
    pipeline = Pipeline(name="orders", source=source, bad_records="quarantine", **given)
    return over_records(dsn, pipeline, list(values))


def test_a_quarantined_record_is_hers_by_its_key_by_todays_parse_or_by_a_member(postgres_dsn: str) -> None:
    """What only mentions the value, or cannot be read, is named and left, until it is asked for."""
    sink = PostgresTable(table="t", mode="upsert", key="who", columns={"who": "text", "n": "smallint"})
    it = lines(postgres_dsn, b"good=1", *[b"?"] * 7, sinks=sink)
    it.epoch()
    contents: list[tuple[bytes | None, bytes]] = [
        (HERS.encode(), b"\x00\x01broken"),
        (None, f"{HERS}=7".encode()),
        (None, json.dumps({"a": [{"who": HERS}]}).encode()),
        (None, f"to {HERS}: hello".encode()),
        (None, b"\xff\xfe\x00"),
        (None, f"x{HERS}=7".encode()),
        (None, b"of another"),
    ]
    for offset, (key, value) in enumerate(contents, start=1):
        statement = "UPDATE epochline.quarantined_record SET key = %s, value = %s, reason = 'bad' WHERE \"offset\" = %s"
        query(postgres_dsn, statement, psycopg2.Binary(key) if key else None, psycopg2.Binary(value), offset)

    headers = json.dumps([["by", base64.b64encode(HERS.encode()).decode()]])
    query(postgres_dsn, 'UPDATE epochline.quarantined_record SET headers = %s WHERE "offset" = 7', headers)

    lines_of_preview = previewed(it, f"who={HERS}")
    forget(it, HERS)

    assert "quarantine: 3 rows erased" in lines_of_preview
    assert any(
        "2 records left that mention it" in line and "orders/0/4, orders/0/7" in line for line in lines_of_preview
    )
    assert any("1 record cannot be searched" in line for line in lines_of_preview)
    kept = it.sql('SELECT "offset" FROM epochline.quarantine WHERE value IS NOT NULL ORDER BY 1')
    assert kept == [(4,), (5,), (6,), (7,)]
    erased = it.sql('SELECT reason, key FROM epochline.quarantine WHERE "offset" = 1')
    assert erased[0][0].endswith("by eve: article 17, ticket 8")
    assert erased[0][1] is None

    forget(it, f"who={HERS}", quarantine_offsets=["orders/0/4", "orders/0/5", "orders/0/7"])

    assert it.sql('SELECT "offset" FROM epochline.quarantine WHERE value IS NOT NULL ORDER BY 1') == [(6,)]
    with pytest.raises(ActionRefusedError, match="the quarantine of orders has no bytes of orders/0/4"):
        forget(it, f"who={HERS}", quarantine_offsets=["orders/0/4"])


def test_an_erased_record_is_explained_and_read_by_no_requeue_replay_or_import(counting: Counting, home: Path) -> None:
    it, file = counting, exported(counting, home / "exported.zip", "first")
    forget(it, HERS, target=True)

    it.act("delete-savepoint", WHY, name="first")
    with pytest.raises(
        SavepointFileError, match=r"was made before values were erased on .* by eve \(article 17, ticket 8\)"
    ):
        imported(it, file)

    requeue = ACTIONS["requeue"]
    refusal = requeue.preview(it.subject, requeue.parse({"everything": True})).refusal
    assert refusal is not None
    assert "keeps state" in refusal


def test_a_replay_of_an_epoch_with_erased_rows_is_refused(postgres_dsn: str) -> None:
    it = lines(postgres_dsn, b"a=1", f"{HERS}=2".encode())
    it.epoch()
    forget(it, f"who={HERS}", target=True)

    with pytest.raises(ActionRefusedError, match=r"epoch 1: t, 1 rows, erased on .* by eve: article 17, ticket 8"):
        plan_replay(it.subject, 1, it.run_of("a replay"))

    with it.ledger.transaction() as tx:
        assert tx.erasures.erased("orders", [1])


def test_an_audit_says_erased_where_rows_and_bytes_are_gone(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str
) -> None:
    """Also of a record that was requeued before: Kafka still has all of them, and nothing counts as missing."""
    columns = {"who": "text", "n": "smallint"}
    pipeline = Pipeline(
        name=topic_name, source=KafkaSource(topics=topic_name), parse=REGEX, bad_records="quarantine",
        sinks=PostgresTable(table="t", columns=columns),
    )  # fmt: skip
    make_topic(kafka_bootstrap, topic_name, 1)
    it = in_process(postgres_dsn, kafka_bootstrap, pipeline).create()
    values = [f"{HERS}=1", f"{OTHER}=1", f"{HERS}=bad", f"{OTHER}=bad", f"{HERS}=99999"]
    produce(kafka_bootstrap, topic_name, [value.encode() for value in values], partition=0)
    it.epoch()
    assert it.sql("SELECT count(*) FROM epochline.quarantine") == [(3,)]
    reader, told = RecordReader({"bootstrap.servers": kafka_bootstrap}), Told()
    audit(postgres_dsn, reader, topic_name, told)
    assert told.said == told.notes == []

    forget(it, f"who={HERS}", target=True)
    left = found(postgres_dsn, HERS)
    forget(it, f"who={HERS}", quarantine_offsets=[f"{topic_name}/0/2", f"{topic_name}/0/4"])

    assert left == ["epochline.quarantined_record"]
    assert found(postgres_dsn, HERS) == []
    audit(postgres_dsn, reader, topic_name, told)
    assert told.said == []
    assert len(told.notes) == 2
    assert all(
        "not compared: erased on " in note and note.endswith("by eve: article 17, ticket 8") for note in told.notes
    )


class Told(Findings):
    """Keeps the notes of epochs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def epoch(self, result: EpochResult) -> None:
        self.notes += result.notes


def test_an_epoch_in_flight_is_refused_by_name(bench: NewBench) -> None:
    """INV-6: what is staged is finished or aborted first."""
    it = bench().after([kv(HERS, 1)])
    it.sealed(kv("b", 1))
    with pytest.raises(ActionRefusedError, match="epoch 2 of orders is PRE_COMMITTED and may hold the values"):
        forget(it, f"k={HERS}", target=True)


def test_unsent_rows_of_a_topic_are_published_first(postgres_dsn: str, kafka_bootstrap: str) -> None:
    """INV-6: until then they are refused by name."""
    world = new_world(postgres_dsn, kafka_bootstrap, KafkaTopic(topic="out", value=Text(), columns={"value": "text"}))
    world.epoch(HERS)
    declared = world.it.pipeline

    for sinks in (declared.sinks, declared.targets):
        world.it.pipeline = declared.model_copy(update={"sinks": sinks})  # also without the topic
        with pytest.raises(ActionRefusedError, match="wait to be shown by .*out.* and may hold the values"):
            forget(world.it, f"value={HERS}", target=True)
    world.it.pipeline = declared
    world.it.publish()
    forget(world.it, f"value={HERS}", target=True)

    assert found(postgres_dsn, HERS) == []


def test_two_at_once_take_turns(counting: Counting, home: Path) -> None:
    it = counting

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: forget(it, key, target=True), (HERS, OTHER, HERS, OTHER)))

    assert found(it.dsn, HERS, home) == found(it.dsn, OTHER, home) == []
    assert it.counts() == [("c", 1)] == it.counts("t")
    assert it.sql("SELECT count(*) FROM epochline.actions WHERE action = 'forget'") == [(4,)]
    it.epoch(word("c", 2))


def test_killed_half_way_it_has_done_nothing_and_is_done_by_a_repeat(counting: Counting, home: Path) -> None:
    """One transaction: SIGKILL while it waits for a lock leaves every value; the repeat erases all of them."""
    it, before = counting, found(counting.dsn, HERS, home)
    ((copy,),) = it.sql("SELECT table_name FROM epochline.savepoint_state")
    with psycopg2.connect(it.dsn) as other, other.cursor() as cursor:
        cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier("epochline", copy)))
        task, given = "tests.integration.counting:forget_in_a_process", {"DSN": it.dsn, "KEY": HERS}
        with fork_server.fork(task, environment=given) as process:
            wait_until(lambda: process.poll() is not None or query(it.dsn, "SELECT 1 FROM pg_locks WHERE NOT granted"))
            assert process.poll() is None, process.communicate()
            process.kill()
        other.rollback()

    assert found(it.dsn, HERS, home) == before
    forget(it, HERS, target=True)
    assert found(it.dsn, HERS, home) == []
    it.epoch(word("c", 9))


def test_files_that_could_not_be_deleted_are_deleted_by_a_repeat(counting: Counting, home: Path) -> None:
    """The files go after the commit: a crash between the two leaves them to the next call."""
    it, folder, aside = counting, home / "epochs" / "orders", home / "aside"
    folder.rename(aside)
    folder.touch()
    with pytest.raises(SavepointFileError):
        forget(it, HERS, target=True)
    folder.unlink()
    aside.rename(folder)
    left = found(it.dsn, HERS, home)

    forget(it, HERS, target=True)

    assert left
    assert all(place.endswith(".zip") for place in left)
    assert found(it.dsn, HERS, home) == []


def test_a_file_that_another_process_writes_meanwhile_does_not_appear(counting: Counting, home: Path) -> None:
    """It has read the state before the erasure, and would get its name after the files were deleted."""
    it, settings = counting, {"epoch_files": {"value": "epochs"}, "epoch_files_kept": {"value": 10}}
    for file in (home / "epochs" / "orders").iterdir():
        file.unlink()

    def slowly(*given: Any, **more: Any) -> Any:
        written = write_file(*given, **more)
        forget(it, HERS, target=True)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epochline.postgres.ledger.savepoints.write_file", slowly)
        leave_file(it.ledger, "orders", settings)

    assert found(it.dsn, HERS, home) == []
    leave_file(it.ledger, "orders", settings)
    assert len(list((home / "epochs" / "orders").iterdir())) == 1
    assert found(it.dsn, HERS, home) == []


def test_epochs_that_run_meanwhile_are_committed_and_write_nothing_back(counting: Counting, home: Path) -> None:
    """It is refused while an epoch is in flight, and between two epochs it erases what both have left."""
    it, tried = counting, []

    def erase() -> None:
        while True:
            try:
                tried.append(forget(it, HERS, target=True))
                return
            except ActionRefusedError as error:
                tried.append([str(error)])

    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(erase)
        for number in range(8):
            it.epoch(word("c", number), word(OTHER, number))
        erasing.result()

    assert found(it.dsn, HERS, home) == []
    assert it.counts() == [(OTHER, 7), ("c", 7)] == it.counts("t")
    assert it.audited() == PUT_THERE


HOSTILE = ["o'neil", 'say "hi"', "100%", "%s", "back\\slash", "grün 🐟", "a=b", "[.*", "x" * 2000, "--", "$1", "{key}"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_are_erased_and_no_other(bench: NewBench, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    it = bench(**UPSERT, before_images=9).after([kv(name, 1), kv("other", 1)], [kv(name, 2), kv("other", 2)])

    forget(it, f"k={name}", target=True)

    assert it.rows() == [("other", 2)]
    assert name not in caplog.text
    images = it.sql("SELECT table_name FROM epochline.before_image ORDER BY epoch_id")
    assert [it.sql(sql.SQL("SELECT k FROM epochline.{}").format(sql.Identifier(table))) for (table,) in images] == [
        [("other",)], [("other",)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "said"),
    [
        pytest.param(["nope=1"], "KEY: write COLUMN=VALUE, with columns among id, name", id="no such column"),
        pytest.param(["plain"], "KEY: write COLUMN=VALUE", id="no key column"),
        pytest.param(["id=1", "id=2"], "column id is given twice", id="twice"),
        pytest.param(["id="], "column id has no value", id="empty"),
        pytest.param(["id=\ud800"], "column id has no value that PostgreSQL takes", id="no text"),
        pytest.param(["id=secret-word"], "target t: its columns take no such value", id="another type"),
        pytest.param(["id=99999999999999999999"], "target t: its columns take no such value", id="out of range"),
    ],
)
def test_a_wrong_key_is_refused_without_its_value(postgres_dsn: str, key: list[str], said: str) -> None:
    columns = {"id": "bigint", "name": "text"}
    sink = PostgresTable(table="t", columns=columns)
    it = lines(postgres_dsn, b'{"id": 1, "name": "x"}', parse=Json(columns=columns), sinks=sink)
    it.epoch()

    with pytest.raises(ActionRefusedError, match=said) as refused:
        forget(it, *key, target=True)

    assert "secret-word" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_value_is_matched_as_its_column_takes_it(postgres_dsn: str) -> None:
    columns = {"id": "numeric(12,2)", "name": "text"}
    sink = PostgresTable(table="t", columns=columns)
    records = [b'{"id": 1.5, "name": "x"}', b'{"id": 15, "name": "y"}']
    it = lines(postgres_dsn, *records, parse=Json(columns=columns), sinks=sink)
    it.epoch()

    forget(it, "id=1.50", "name=x", target=True)

    assert it.sql("SELECT name FROM t") == [("y",)]


def test_the_reason_may_not_keep_the_value_and_airflow_gets_no_such_dag(bench: NewBench) -> None:
    """Airflow keeps the parameters of a run: a DAG would keep the key."""
    it = bench().after([kv(HERS, 1)])

    with pytest.raises(ActionRefusedError, match="the reason mentions the key"):
        it.act("forget", Request(actor="eve", reason=f"{HERS} asked for it"), key=[f"k={HERS}"], target=True)

    assert it.rows() == [(HERS, 1)]
    assert "forget" not in DAG_ACTIONS
