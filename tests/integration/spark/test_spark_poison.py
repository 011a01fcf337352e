"""F28 to F30 through a real Spark job: hostile and huge records, read by Spark and again by the audit, and requeued."""

import json
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from kafka import KafkaProducer
from psycopg2 import sql

from epochline import PostgresTable
from epochline.arrow.cast.batches import quarantine_batch, record_batch
from epochline.arrow.stage.counts import digest, record_hashes
from epochline.declare.names import QUARANTINE
from epochline.declare.parsers import Json
from epochline.errors import BadRecordError, RecordsRefusedError
from epochline.kafka.records import RecordReader
from epochline.operations import Request
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.balances import add_up
from epochline.protocol.epoch import Epoch, EpochKind
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.staging import StagingTicket
from tests.commands import in_processes
from tests.integration.kafka_topics import make_topic
from tests.integration.spark.conftest import Runs, Servers

COLUMNS = {"id": "bigint", "what": "text"}
LARGEST = 5 * 1024 * 1024  # five times what a consumer fetches of a partition at once
# One as large as the topic takes, less the batch's own frame, which the limit counts; and poison around it.
HUGE = json.dumps({"id": 2, "what": "x" * (LARGEST - 200)}).encode()
VALUES = [b'{"id": 1}', HUGE, b"\xff", b"{no", None, b"", b'{"what": "canary\\u0000"}', b'{"id": 7}']
REFUSED = (2, 3, 5, 6)


@pytest.fixture
def hostile(servers: Servers) -> Servers:
    """With the records in a topic that has the pipeline's name."""
    topic = make_topic(servers.bootstrap, servers.name, 2, **{"max.message.bytes": str(LARGEST)})
    with closing(KafkaProducer(bootstrap_servers=servers.bootstrap, max_request_size=LARGEST + 4096)) as producer:
        for at, value in enumerate(VALUES):
            headers = [("h", b"1"), ("h", b""), ("ä", b"\xff")] if at % 2 else []
            key = None if value else b"key"
            producer.send(topic, value=value, key=key, headers=headers, partition=0, timestamp_ms=1_000 + at).get(300)
    return servers


def begun(servers: Servers, start: int, bad_records: Literal["quarantine", "fail"]) -> StagingTicket:
    sink = PostgresTable(table="public.hostile", columns=COLUMNS)
    pipeline = servers.pipeline(servers.name, parse=Json(columns=COLUMNS), bad_records=bad_records, sinks=sink)
    return servers.database.attempt(pipeline, {(servers.name, 0): (start, len(VALUES))})


@pytest.mark.fault("F28", "F29", "F30")
def test_hostile_and_huge_records_have_their_outcome_and_are_read_again_as_spark_read_them(hostile: Servers) -> None:
    """F28, F29, F30: no setting is needed for a record above the fetch size: a broker gives at least one batch."""
    topic, database = hostile.name, hostile.database
    ticket = begun(hostile, 0, "quarantine")

    hostile.run_job()

    rows = database.rows(ticket, "public.hostile", "_offset, id, length(what)")
    assert rows == [(0, 1, None), (1, 2, LARGEST - 200), (4, None, None), (7, 7, None)]
    kept = database.rows(ticket, QUARANTINE, '"offset", reason, record_timestamp, key, value, headers')
    assert tuple(row[0] for row in kept) == REFUSED
    seen = add_up(counts_of(message) for _, message in database.parts(ticket).values())[topic, 0]
    assert (seen.received, seen.passed, seen.quarantined) == (8, 4, 4)

    with RecordReader(hostile.credentials.kafka).session() as session:
        read = session.read(topic, 0, OffsetRange(start=0, until=len(VALUES)))
        again = [record_batch(topic, 0, columns) for columns in read]
    assert sum(digest(record_hashes(one)) for one in again) % 2**64 == seen.digest
    by_audit = []
    for one in again:
        reasons = {at: "" for at, offset in enumerate(one.column("offset").to_pylist()) if offset in REFUSED}
        by_audit += quarantine_batch(one, reasons).to_pylist()
    assert [
        (offset, moment, key and bytes(key), value if value is None else bytes(value), headers)
        for offset, _, moment, key, value, headers in kept
    ] == [(one["offset"], one["record_timestamp"], one["key"], one["value"], one["headers"]) for one in by_audit]


def test_the_job_of_a_pipeline_that_fails_on_poison_names_the_record_and_no_value(hostile: Servers) -> None:
    """F28, SEC-5: the error that the driver raises and the ledger keeps."""
    database = hostile.database
    ticket = begun(hostile, 6, "fail")

    with pytest.raises(BadRecordError, match=f"{hostile.name}-0 offset 6: .*NUL byte") as raised:
        hostile.run_job()

    kept = database.error(ticket)
    assert kept.startswith("BadRecordError: ")
    assert "canary" not in f"{kept}{raised.value}"
    assert database.manifests(ticket) == {}
    assert not database.ended(ticket)


def bad_among(number: int) -> tuple[list[bytes], set[int]]:
    """Values of records, and the offsets of every twentieth, which is bad."""
    bad = set(range(0, number, 20))
    return [json.dumps({"id": -at if at in bad else at + 1}).encode() for at in range(number)], bad


def test_what_staging_refuses_is_found_in_every_partition_at_once(servers: Servers) -> None:
    """INV-9: a task that finds some ends well, so that the others find theirs; the next attempt commits the rest."""
    values, bad = bad_among(3_000)
    topic = servers.topic({0: values, 1: values})
    parse, sink = Json(columns={"id": "bigint"}), PostgresTable(table="public.ids", columns={"id": "bigint"})
    runs = Runs(servers, servers.pipeline(topic, parse=parse, bad_records="quarantine", sinks=sink))
    planned, who = runs.planned()
    ticket = runs.attempt(planned, who)
    staging = sql.Identifier("epochline_staging", ticket.table("public.ids").table)
    servers.database.query(sql.SQL("ALTER TABLE {} ADD CHECK (id > 0)").format(staging))

    with pytest.raises(RecordsRefusedError, match=f"{topic}-. offset .*SQLSTATE 23514.*; and 295 more"):
        servers.run_job()

    expected = {(partition, offset) for partition in (0, 1) for offset in bad}
    assert sorted(servers.database.query('SELECT partition, "offset" FROM epochline.refused_row')) == sorted(expected)
    assert servers.database.ids(ticket, "public.ids") == []
    epoch = runs.committed(planned, who)
    assert (epoch.attempt, epoch.counts.read, epoch.counts.quarantined) == (2, 6_000, 300)
    assert set(servers.database.query('SELECT partition, "offset" FROM epochline.quarantine')) == expected
    assert servers.database.query("SELECT count(*), min(id) FROM public.ids") == [(5_700, 2)]


DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

dag = epoch_dag(Pipeline(
    name="ruled", source=KafkaSource(topics="{topic}", records_per_epoch=2000), parse=Json(columns={{"id": "bigint"}}),
    sinks=PostgresTable(table="ruled"), bad_records="quarantine",
))
"""


def test_a_run_until_caught_up_goes_on_where_a_target_refuses_records(servers: Servers, tmp_path: Path) -> None:
    """INV-9: two epochs of two attempts each, and the number of what they set aside in the last line."""
    values, bad = bad_among(3_000)
    (tmp_path / "ruled.py").write_text(DECLARED.format(topic=servers.topic({0: values})))
    servers.database.query(
        "CREATE TABLE public.known (id bigint PRIMARY KEY); INSERT INTO public.known SELECT generate_series(1, 3000);"
        "CREATE TABLE public.ruled (id bigint REFERENCES public.known, _topic text, _partition int, _offset bigint,"
        " _row int, _epoch bigint)"
    )
    epochline = in_processes(tmp_path, postgres=servers.database.dsn, kafka=servers.bootstrap)

    said = epochline("run", "ruled", "--until-caught-up", "--master", "local[2]")

    assert said.splitlines()[-1] == f"ruled: caught up after 2 epochs; records quarantined: {len(bad)}"
    attempts = "SELECT epoch_id, count(*) FROM epochline.attempt GROUP BY 1 ORDER BY 1"
    assert servers.database.query(attempts) == [(1, 2), (2, 2)]
    assert {at for (at,) in servers.database.query('SELECT "offset" FROM epochline.quarantine')} == bad
    assert servers.database.query("SELECT count(*) FROM public.ruled") == [(3_000 - len(bad),)]


PARSE = """
import pyarrow as pa

REFUSED = {refused!r}

def parse(batch):
    values = [None if value is None else value.decode("latin-1") for value in batch.column("value").to_pylist()]
    headers = batch.column("headers").to_pylist()
    texts = [f"{{value}} {{[(h['key'], h['value'].decode()) for h in (hs or [])]}}" for value, hs in zip(values, headers)]
    errors = [f"{{value}} is refused" if value in REFUSED else None for value in values]
    return pa.RecordBatch.from_arrays(
        [pa.array(texts, pa.string()), batch.column("timestamp"), pa.array(errors, pa.string())],
        names=["value", "at", "_error"],
    )
"""


@pytest.fixture
def parsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules strict, half and mended, of which each refuses less."""
    for name, refused in (("rq_strict", ["bad", "worse"]), ("rq_half", ["worse"]), ("rq_mended", [])):
        (tmp_path / f"{name}.py").write_text(PARSE.format(refused=refused))
    monkeypatch.syspath_prepend(str(tmp_path))


ORDER = Request(actor="ada", reason="the parse was mended")


@pytest.mark.usefixtures("parsers")
def test_quarantined_records_are_written_once_by_a_mended_parse_with_their_bytes_times_and_headers(
    servers: Servers,
) -> None:
    """INV-9: three epochs, the second of which mends one of two records only."""
    columns = {"value": "text", "at": "timestamptz"}
    strict = servers.pipeline(
        servers.topic({0: [b"good", b"bad", b"good too"], 1: [b"worse"]}), parse="rq_strict:parse", record=columns,
        sinks=[PostgresTable(table="again", columns=columns)], bad_records="quarantine",
    )  # fmt: skip
    line, database = Runs(servers, strict), servers.database

    def requeue(parse: str, run: str) -> Epoch:
        line.pipeline = strict.model_copy(update={"parse": f"{parse}:parse"})
        who = line.run_of(run)
        return line.committed(line.order("requeue", ORDER, who, everything=True), who)

    committed = line.epoch()
    times = database.query("SELECT value, record_timestamp FROM epochline.quarantine")
    assert (committed.counts.passed, committed.counts.quarantined) == (2, 2)

    half = requeue("rq_half", "an operator's first")
    kept = database.query("SELECT value, reason, requeued_by FROM epochline.quarantine ORDER BY requeued_by")
    whole = requeue("rq_mended", "an operator's second")

    assert (half.kind, half.counts.read, half.counts.passed, half.counts.quarantined) == (EpochKind.REQUEUE, 2, 1, 1)
    assert [(bytes(value), reason, by) for value, reason, by in kept] == [
        (b"bad", "bad is refused", half.epoch_id), (b"worse", "worse is refused", None),
    ]  # fmt: skip
    assert (whole.counts.read, whole.counts.passed) == (1, 1)
    header = "[('h', '1')]"
    rows = database.query("SELECT value, _partition, _offset, _epoch, at FROM again ORDER BY _partition, _offset")
    assert [row[:4] for row in rows] == [
        (f"good {header}", 0, 0, 1), (f"bad {header}", 0, 1, half.epoch_id),
        (f"good too {header}", 0, 2, 1), (f"worse {header}", 1, 0, whole.epoch_id),
    ]  # fmt: skip
    at = {bytes(value): moment for value, moment in times}
    assert (rows[1][4], rows[3][4]) == (at[b"bad"], at[b"worse"])
