"""`epochline why` on real PostgreSQL and Kafka: from a row of each kind of target to the records that made it."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from epochline import Files, Input, Json, KafkaSource, Pipeline, PostgresTable, Sources, Text
from epochline.airflow.pages.why import WhyQuery, why_view
from epochline.operations import Request, refresh_log_ends
from epochline.postgres.ledger.why import explain
from tests.commands import Call, connect_to
from tests.databases import as_connection, query
from tests.integration.bench import UPSERT as BY_KEY
from tests.integration.bench import NewBench, kv
from tests.integration.in_process import InProcess, counter
from tests.integration.kafka_topics import delete_records, delete_topic, make_topic, produce
from tests.integration.logins import AsSuperuser, Login, user
from tests.integration.operating import act, with_savepoint
from tests.integration.page_views import html
from tests.integration.sinks_world import in_process

KV = {"k": "text", "v": "integer"}
PLAIN = PostgresTable(table="t", columns=KV)


@dataclass
class Asked:
    """A pipeline over two partitions with two epochs, and the command.

    Epoch 1 reads a=1 and b=2 of partition 0, and a=3 of partition 1; epoch 2 reads a=4 and c=5 of partition 0.
    """

    world: InProcess
    bootstrap: str
    topic: str
    call: Call
    sql: Callable[..., list[tuple[Any, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        self.sql = self.world.sql

    def produce(self, partition: int, *values: tuple[Any, int] | bytes) -> None:
        texts = [one if isinstance(one, bytes) else json.dumps({"k": one[0], "v": one[1]}).encode() for one in values]
        produce(self.bootstrap, self.topic, texts, partition=partition, key=b"key", headers=[("h", b"\xff")])

    def why(self, *key: str, limit: int = 20) -> dict[str, Any]:
        answer: dict[str, Any] = self.call.json("why", "t", *key, "--limit", limit)
        assert (answer["pipeline"], answer["table"]) == (self.topic, "t")
        return answer

    def only(self, *key: str) -> dict[str, Any]:
        [row] = self.why(*key)["rows"]
        return dict(row)


NewAsked = Callable[..., Asked]


@pytest.fixture
def asked(on_servers: Call, postgres_dsn: str, kafka_bootstrap: str, topic_name: str) -> NewAsked:
    def make(sink: PostgresTable = PLAIN, *more: Files, second: int = 1) -> Asked:
        pipeline = Pipeline(
            name=topic_name, source=KafkaSource(topics=topic_name), parse=Json(columns=KV), sinks=[sink, *more],
            bad_records="quarantine",
        )  # fmt: skip
        make_topic(kafka_bootstrap, topic_name, 2)
        one = Asked(
            in_process(postgres_dsn, kafka_bootstrap, pipeline).create(), kafka_bootstrap, topic_name, on_servers
        )
        one.produce(0, ("a", 1), ("b", 2))
        one.produce(second, ("a", 3))
        one.world.epoch()
        one.produce(0, ("a", 4), ("c", 5))
        one.world.epoch()
        return one

    return make


def places(records: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(record["partition"], record["offset"]) for record in records]


UPSERT = {"mode": "upsert", "key": "k", "order_by": "v"}
OF_EACH_RECORD: dict[str, tuple[dict[str, Any], list[tuple[int, int, int]]]] = {
    "append": ({}, [(2, 0, 2), (1, 1, 0), (1, 0, 0)]),
    "append with a key": ({"key": "v", "repeats": "refuse"}, [(2, 0, 2), (1, 1, 0), (1, 0, 0)]),
    "upsert": (UPSERT, [(2, 0, 2)]),
    "replace": ({"mode": "replace"}, [(2, 0, 2)]),
}


@pytest.mark.parametrize("kind", OF_EACH_RECORD)
def test_a_row_with_lineage_leads_to_its_record_with_its_bytes_epoch_run_and_declaration(
    kind: str, asked: NewAsked
) -> None:
    """U9."""
    declared, expected = OF_EACH_RECORD[kind]
    one = asked(PostgresTable(table="t", columns=KV, **declared))

    answer = one.why("k=a")

    assert answer["more_rows"] is False
    found = [(row["epoch"]["epoch_id"], *places([row["record"]])[0]) for row in answer["rows"]]
    assert found == expected
    [epochs] = [one.sql("SELECT run_id, dag_id, declaration_hash FROM epochline.epochs WHERE epoch_id = 2")]
    newest = answer["rows"][0]
    assert tuple(newest["epoch"][name] for name in ("run_id", "dag_id", "declaration_hash")) == epochs[0]
    assert (newest["epoch"]["attempt"], newest["notes"], newest["scope"]) == (1, [], None)
    assert newest["record"]["value"] == "\\x" + json.dumps({"k": "a", "v": 4}).encode().hex()
    assert (newest["record"]["key"], newest["record"]["headers"]) == ("\\x6b6579", [["h", "\\xff"]])


OF_MANY_RECORDS: dict[str, tuple[dict[str, Any], tuple[int, int], list[tuple[int, int]], int]] = {
    "append without lineage": ({"lineage": False}, (1, 2), [(0, 2), (1, 0), (0, 0)], 3),
    "upsert without lineage": ({**UPSERT, "lineage": False}, (1, 2), [(0, 2), (1, 0), (0, 0)], 1),
    "add": ({"mode": "add", "key": "k", "measures": "v"}, (1, 2), [(0, 2), (1, 0), (0, 0)], 1),
    "replace without lineage": ({"mode": "replace", "lineage": False}, (2, 2), [(0, 2)], 1),
}


@pytest.mark.parametrize("kind", OF_MANY_RECORDS)
def test_a_row_without_lineage_leads_to_the_ranges_of_its_records_and_to_those_of_its_key(
    kind: str, asked: NewAsked
) -> None:
    """U9: newest first, and bounded; what a record is not told to have made is not said of it."""
    declared, scope, records, rows = OF_MANY_RECORDS[kind]
    one = asked(PostgresTable(table="t", columns=KV, **declared))

    answer = one.why("k=a")

    assert len(answer["rows"]) == rows
    for row in answer["rows"]:
        assert (row["record"], row["epoch"], row["more_records"], row["notes"]) == (None, None, 0, [])
        assert (row["scope"]["first"], row["scope"]["last"]) == scope
        assert places(row["records"]) == records
    ends = {(read["partition"], read["until_offset"]) for read in answer["rows"][0]["scope"]["ranges"]}
    assert ends == ({(0, 4), (1, 1)} if scope == (1, 2) else {(0, 4)})
    [fewer] = one.why("k=a", limit=1)["rows"]
    assert (places(fewer["records"]), fewer["more_records"]) == (records[:1], len(records) - 1)


CHECKED = "ALTER TABLE t ADD CONSTRAINT small CHECK (v < 50)"


def test_records_that_no_epoch_wrote_are_not_among_those_of_a_key(asked: NewAsked) -> None:
    """Quarantined ones, and those that no epoch has read yet."""
    one = asked(PostgresTable(table="t", columns=KV, mode="add", key="k", measures="v"))
    one.produce(1, b'{"k": "a", "v": "none"}', ("d", 1))
    one.world.epoch()
    one.produce(1, ("a", 9))

    assert places(one.only("a")["records"]) == [(0, 2), (1, 0), (0, 0)]


@pytest.mark.parametrize("lineage", [True, False])
def test_a_requeued_record_is_found_in_the_epoch_that_read_it_again(lineage: bool, asked: NewAsked) -> None:
    """Once: the epoch that set it aside made no row of it."""
    one = asked(PostgresTable(table="t", columns=KV, lineage=lineage))
    one.sql(CHECKED)
    one.produce(1, ("e", 60))
    planned, run = one.world.planned()
    one.world.attempts(planned, run)
    one.sql("ALTER TABLE t DROP CONSTRAINT small")
    run = one.world.run_of("mended")
    one.world.finish(one.world.order("requeue", Request(actor="ada", reason="mended"), run, everything=True), run)

    row = one.only("k=e")

    if lineage:
        assert (row["epoch"]["epoch_id"], row["epoch"]["kind"], *places([row["record"]])) == (4, "requeue", (1, 1))
        assert row["notes"] == ["Epoch 3 set the record aside, and epoch 4 read it again."]
        assert row["record"]["value"]
    else:
        assert [(record["epoch_id"], record["offset"]) for record in row["records"]] == [(4, 1)]


def test_the_terminal_says_it_in_sentences(asked: NewAsked) -> None:
    one = asked(PostgresTable(table="t", columns=KV, mode="add", key="k", measures="v"))
    told = one.call.shown("why", "t", "a", "--limit", 2)
    for said in (
        f"t of {one.topic}, mode add", "k=a", "no single record: each epoch adds its records of the key",
        f"{one.topic}-0 [0, 4)", f"{one.topic}/0/2 of epoch 2", "and 1 record more",
    ):  # fmt: skip
        assert said in told


def test_a_single_row_is_told_with_bytes_and_the_way_to_its_log(asked: NewAsked) -> None:
    one = asked()
    told = one.call.shown("why", "public.t", "k=c")
    for said in ("epoch 2, attempt 1, committed", "run run-2 of", "log: `epochline logs", "in Airflow dags/",
                 f"record {one.topic}/0/3", "header h: \\xff", "key, 3 bytes: key", '{"k": "c", "v": 5}'):  # fmt: skip
        assert said in told


def test_a_record_that_is_gone_is_said_to_be_so_since_when(asked: NewAsked) -> None:
    one = asked()
    delete_records(one.bootstrap, one.topic, {0: 1})

    assert one.only("k=b")["record"]["value"]
    [gone] = [row["record"] for row in one.why("k=a")["rows"] if places([row["record"]]) == [(0, 0)]]
    assert gone["gone"] == "it was deleted: the log begins at offset 1 now"
    assert gone["since"].startswith("Kafka had it at ")
    with_log_ends(one)
    [gone] = [row["record"] for row in one.why("k=a")["rows"] if places([row["record"]]) == [(0, 0)]]
    assert ", and no longer at " in gone["since"]

    delete_topic(one.bootstrap, one.topic)
    assert "has no" in one.only("k=b")["record"]["gone"]
    make_topic(one.bootstrap, one.topic, 2)
    one.produce(0, ("x", 1), ("y", 1), ("z", 1))
    assert "was deleted and made again" in one.only("k=b")["record"]["gone"]


def with_log_ends(one: Asked) -> None:
    refresh_log_ends(one.world.ledger, one.world.source, [one.world.pipeline], "epochline_kafka")


def test_what_kafka_no_longer_has_is_named_where_records_are_searched(asked: NewAsked) -> None:
    one = asked(PostgresTable(table="t", columns=KV, mode="add", key="k", measures="v"))
    delete_records(one.bootstrap, one.topic, {0: 2})

    row = one.only("a")

    assert places(row["records"]) == [(0, 2), (1, 0)]
    assert row["notes"] == [f"{one.topic}-0: not retained: offsets [0, 2)"]


@pytest.mark.parametrize("declared", [{}, UPSERT], ids=["append", "upsert"])
def test_a_row_that_another_hand_changed_is_told_from_one_that_its_record_gave(
    declared: dict[str, Any], asked: NewAsked
) -> None:
    """A value, the lineage, the epoch; and a row that names no epoch."""
    one = asked(PostgresTable(table="t", columns=KV, **declared))
    one.sql("UPDATE t SET v = 7 WHERE k = 'b'")
    when, differs = one.only("k=b")["notes"]
    assert when.startswith("Another hand wrote the row last: a transaction of 20")
    assert "differs from what its record gives by today's parse, in v" in differs
    one.sql("UPDATE t SET _offset = 99 WHERE k = 'b'")
    assert one.only("k=b")["notes"][1].startswith(f"Epoch 1 did not read {one.topic}/0/99: another hand")
    one.sql("UPDATE t SET _epoch = 77 WHERE k = 'b'")
    assert "no committed epoch 77" in one.only("k=b")["notes"][0]
    one.sql("INSERT INTO t (k, v) VALUES ('by hand', 1)")
    row = one.only("k=by hand")
    assert (row["record"], row["scope"], row["epoch"]) == (None, None, None)
    assert row["notes"] == ["The row names no epoch: another program wrote it, or it was there before."]


@pytest.mark.slow
def test_a_kafka_that_does_not_answer_hides_nothing_that_the_ledger_knows(
    asked: NewAsked, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = asked()
    connect_to(monkeypatch, kafka="127.0.0.1:1")

    code, out, _ = one.call("why", "t", "k=b", "--json")

    [row] = json.loads(out)["rows"]
    assert (code, row["epoch"]["epoch_id"], *places([row["record"]])) == (1, 1, (0, 1))
    assert "does not answer" in row["record"]["hidden"]


def test_a_row_that_a_restore_put_back_is_blamed_on_nobody(bench: NewBench) -> None:
    it = with_savepoint(bench, **BY_KEY, before_images=5)
    it.epoch(kv("a", 2))
    act(it, "restore", name="before")

    def notes() -> list[str]:
        with closing(psycopg2.connect(it.dsn)) as session:
            [row] = explain(session, "t", ["k=a"], 5).rows
        assert row.epoch is not None
        assert row.epoch["epoch_id"] == 1
        return row.notes

    assert notes() == []
    it.sql("UPDATE t SET v = v WHERE k = 'a'")
    assert [note[:31] for note in notes()] == ["Another hand wrote the row last"]


def test_an_upsert_tells_what_it_replaced_and_what_deleted_a_key(asked: NewAsked) -> None:
    """By before-images and the side table of deleted keys."""
    one = asked(PostgresTable(table="t", columns=KV, mode="upsert", key="k", before_images=5), second=0)
    [newest, first] = one.only("a")["replaced"]
    assert (newest["replaced_by"], newest["existed"], newest["offset"], newest["epoch"]) == (2, True, 2, 1)
    assert (first["replaced_by"], first["existed"]) == (1, False)
    assert f"before epoch 2: a row of record {one.topic}/0/2 of epoch 1" in one.call.shown("why", "t", "a")

    produce(one.bootstrap, one.topic, [None], partition=0, key=b'{"k": "b"}')
    one.world.epoch()
    answer = one.why("b")
    assert (answer["rows"], answer["deleted_by"]["offset"], answer["deleted_by"]["value"]) == ([], 5, None)
    one.sql("DELETE FROM t WHERE k = 'c'")
    assert "has no row with k=c" in one.call.refusal("why", "t", "c")


def test_a_key_that_does_not_fit_is_refused_by_name(asked: NewAsked, tmp_path: Path) -> None:
    """Nothing is cut or rounded until it fits."""
    short = PostgresTable(table="t", columns={"k": "varchar(44)", "v": "integer"}, mode="upsert", key="k")
    one = asked(short, Files(path=str(tmp_path), columns=KV), second=0)

    assert "wrote nowhere" in one.call.refusal("why", "nowhere", "a")
    assert "has no row with k=nobody" in one.call.refusal("why", "t", "nobody")
    assert "a value does not fit its column's type" in one.call.refusal("why", "t", "v=many")
    assert "does not say which column of t" in one.call.refusal("why", "t", "k=a", "other=1")
    assert "is not UTF-8" in one.call.refusal("why", "t", "k=\udcff")
    assert "is not UTF-8" in one.call.refusal("why", "t\udcff", "k=a")
    assert "column k twice" in one.call.refusal("why", "t", "k=a", "k=b")
    assert "is no table" in one.call.refusal("why", f"files:{tmp_path}", "k=a")
    hostile = 'o\'%s "b"; DROP TABLE t; -- \N{SNOWMAN}={}\\'.ljust(44, "_")
    one.produce(0, (hostile, 1))
    one.world.epoch()
    assert one.only(hostile)["record"]["offset"] == 5
    assert "has no row" in one.call.refusal("why", "t", f"{hostile}_")


def test_a_reader_learns_of_a_declaration_where_its_clusters_are_and_what_its_tables_are(postgres_dsn: str) -> None:
    """Not what an author puts into options. Several sources have several clusters, or none."""
    inputs = {
        "shop": Input(source=KafkaSource(topics="a", connection="first"), parse=Text()),
        "crm": Input(source=KafkaSource(topics="a", connection="second"), parse=Text()),
        "own": Input(source=counter(1), parse=Text()),
    }
    columns = {"value": "text"}
    sinks = [
        PostgresTable(table="s.t", mode="upsert", key="value", columns=columns, aggregated=True),
        Files(path="/tmp/f", columns=columns),
    ]
    several = Pipeline(name="several", source=Sources(inputs=inputs), transform="json:dumps", sinks=sinks)
    query(postgres_dsn, "INSERT INTO epochline.pipeline (pipeline) VALUES ('several')")
    query(
        postgres_dsn, "INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('h', 'several', %s)",
        several.stored(),
    )  # fmt: skip

    found = query(postgres_dsn, "SELECT input, connection FROM epochline.declared_kafka ORDER BY 1")

    assert found == [("crm", "second"), ("shop", "first")]
    assert query(postgres_dsn, "SELECT * FROM epochline.declared_tables") == [
        ("h", "s.t", "upsert", True, False, False)
    ]


def test_a_reader_finds_records_and_sees_no_bytes_and_an_inspector_sees_them(
    asked: NewAsked, login: Login, as_superuser: AsSuperuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-9: bytes of records are shown to whom those of the quarantine are."""
    one = asked()
    reader, inspector = login("epochline_reader"), login("epochline_reader", "epochline_inspector")
    connect_to(monkeypatch, postgres=reader)
    assert f"GRANT SELECT ON public.t TO {user(reader)}" in one.call.refusal("why", "t", "k=b")
    as_superuser(*(f"GRANT SELECT ON t TO {user(dsn)}" for dsn in (reader, inspector)))

    row = one.only("k=b")

    assert (row["epoch"]["epoch_id"], *places([row["record"]])) == (1, (0, 1))
    assert "value" not in row["record"]
    assert "no member of epochline_inspector" in row["record"]["hidden"]
    connect_to(monkeypatch, postgres=inspector)
    assert one.only("k=b")["record"]["value"]


def test_the_page_answers_as_the_terminal_does_and_asks_kafka_only_for_the_bytes(
    asked: NewAsked, reader: str, as_superuser: AsSuperuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-1: one implementation; a table of another pipeline is not looked at, and a name is data."""
    one = asked()
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_READER", as_connection(reader))
    as_superuser(f"GRANT epochline_inspector TO {user(reader)} WITH INHERIT FALSE")
    refused = why_view(one.topic, WhyQuery(table="t", key="k=b")).problem
    assert refused is not None
    assert "GRANT SELECT ON public.t TO epochline_inspector" in refused
    as_superuser("GRANT SELECT ON t TO epochline_inspector")

    view = why_view(one.topic, WhyQuery(table="t", key="k=b"))

    assert view.why is not None
    [row] = view.why.rows
    assert (row.record and (row.record.partition, row.record.offset), row.notes) == ((0, 1), [])
    assert (view.parts, view.said) == ((), None)
    asked_for_bytes = WhyQuery(table="t", key="k=b", bytes=True)
    page = shown(one.topic, asked_for_bytes)
    assert f"{one.topic}/0/1" in page
    assert "{&#34;k&#34;: &#34;b&#34;, &#34;v&#34;: 2}" in page
    assert "no committed epoch of other wrote t" in shown("other", asked_for_bytes)
    assert "<script>" not in shown(one.topic, WhyQuery(table="<script>", key="<script>\n'%s"))
    delete_records(one.bootstrap, one.topic, {0: 2})
    assert "it was deleted: the log begins at offset 2 now" in shown(one.topic, asked_for_bytes)


def shown(pipeline: str, asked_for: WhyQuery) -> str:
    view = why_view(pipeline, asked_for)
    return html("why.html", f"/pipelines/{pipeline}/why", name=pipeline, asked=asked_for, view=view)
