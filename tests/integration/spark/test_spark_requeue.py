"""Requeue with real Spark, PostgreSQL and Kafka: quarantined records through a parse that was mended."""

from pathlib import Path

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.operations import Request
from epochline.operations.requeue import Requeue
from epochline.protocol.epoch import Epoch, EpochKind, Run
from tests.integration.spark.conftest import Runs, Servers

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


@pytest.mark.usefixtures("parsers")
def test_quarantined_records_are_written_once_by_a_mended_parse_with_their_bytes_times_and_headers(
    servers: Servers,
) -> None:
    """INV-9: three epochs, the second of which mends one of two records only."""
    columns = {"value": "text", "at": "timestamptz"}
    strict = Pipeline(
        name=servers.name, source=KafkaSource(topics=servers.topic({0: [b"good", b"bad", b"good too"], 1: [b"worse"]})),
        parse="rq_strict:parse", record=columns, sinks=[PostgresTable(table="again", columns=columns)],
        bad_records="quarantine",
    )  # fmt: skip
    line, database = Runs(servers, strict), servers.database

    def requeue(parse: str, run: str) -> Epoch:
        line.pipeline = strict.model_copy(update={"parse": f"{parse}:parse"})
        action, who = Requeue(), Run(dag_id=line.name, run_id=run, host="here")
        order = Request(actor="ada", reason="the parse was mended")
        return line.committed(action.plan(line.subject, action.parse({"everything": True}), order, who), who)

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
