"""What operators bring into a target from a terminal: `epochline extend-back` and `requeue`, with Spark, to the end."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline.kafka.source import KafkaOffsets
from tests.commands import in_processes
from tests.databases import query

DECLARED = """
from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

columns = {{"id": "bigint"}}
dag = epoch_dag(Pipeline(
    name="terminal", source=KafkaSource(topics="{topic}", startup="latest"), parse="numbers_of_lines:parse",
    record=columns, sinks=PostgresTable(table="numbers", columns=columns), bad_records="quarantine",
    spark_connection="spark_of_terminal",
))
"""
PARSE = """
import pyarrow as pa

def parse(batch):
    texts = [value.decode(){mended} for value in batch.column("value").to_pylist()]
    numbers = [int(text) if text.isdecimal() else None for text in texts]
    errors = [None if text.isdecimal() else "not a number" for text in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int64()), pa.array(errors, pa.string())], names=["id", "_error"]
    )
"""

Terminal = Callable[..., str]
Feed = Callable[[str], None]


@pytest.fixture
def terminal(postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path) -> Terminal:
    # Another test's ledger wrote this mirror; with a new database it would mean that the ledger went back in time.
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.terminal")
    (tmp_path / "terminal.py").write_text(DECLARED.format(topic=topic_name))
    (tmp_path / "numbers_of_lines.py").write_text(PARSE.format(mended=""))
    return in_processes(
        tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        AIRFLOW_CONN_SPARK_OF_TERMINAL=json.dumps({"conn_type": "spark", "host": "local[1]"}),
    )  # fmt: skip


@pytest.fixture
def feed(terminal: Terminal, topic_name: str, tmp_path: Path) -> Feed:
    def do(lines: str) -> None:
        (tmp_path / "lines").write_text(lines)
        terminal("feed", str(tmp_path / "lines"), "--topic", topic_name)

    return do


@pytest.mark.slow
def test_the_past_is_extended_and_the_quarantine_requeued_from_a_terminal(
    terminal: Terminal, feed: Feed, postgres_dsn: str, tmp_path: Path
) -> None:
    """B1, E2: the same use cases as in Airflow; each record once, and the ledger says who asked and why."""
    terminal("migrate")
    feed("".join(f"{number}\n" for number in range(50)))
    assert "nothing to read" in terminal("run", "terminal")
    feed("50\n51!\n52\n53!\n")
    (newest,) = json.loads(terminal("run", "terminal", "--json"))

    extended = terminal(
        "extend-back", "terminal", "earliest", "--step", "20", "--reason", "asked for", "--yes", "--json"
    )
    (tmp_path / "numbers_of_lines.py").write_text(PARSE.format(mended=".rstrip('!')"))
    requeued = terminal("requeue", "terminal", "--everything", "--reason", "the parse was mended", "--yes")
    actions = json.loads(terminal("actions", "terminal", "--json"))

    assert (newest["records_read"], newest["records_quarantined"]) == (4, 2)
    assert [one["records_read"] for one in json.loads(extended)] == [20, 20, 10]
    assert "is committed: 2 records read, 2 passed" in requeued
    assert query(postgres_dsn, "SELECT id FROM numbers ORDER BY id") == [(number,) for number in range(54)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.quarantine WHERE requeued_by IS NULL") == [(0,)]
    expected = [("extend-back", "asked for")] * 3 + [("requeue", "the parse was mended")]
    assert [(one["action"], one["reason"]) for one in actions] == expected
    assert all("@" in one["actor"] for one in actions)


@pytest.mark.slow
def test_an_epoch_is_replayed_and_promoted_from_a_terminal(
    terminal: Terminal, feed: Feed, postgres_dsn: str, tmp_path: Path
) -> None:
    """What a mended parse makes of an epoch is shown first, and takes its place where that is said."""
    terminal("migrate")
    feed("0\n")  # lies before the origin, as the pipeline begins at the end
    assert "nothing to read" in terminal("run", "terminal")
    feed("1\n2!\n3\n")
    terminal("run", "terminal")
    (tmp_path / "numbers_of_lines.py").write_text(PARSE.format(mended=".rstrip('!')"))

    shown = terminal("replay", "terminal", "--epoch", "1", code=1)
    before = query(postgres_dsn, "SELECT id FROM numbers ORDER BY id")
    promoted = terminal("replay", "terminal", "--epoch", "1", "--promote", "--reason", "the parse was mended", "--yes")

    assert "numbers: 1 inserted, 0 deleted, 0 changed, 2 the same" in shown
    assert "stays as it is" in shown
    assert before == [(1,), (3,)]
    assert "takes the place of epoch 1" in promoted
    assert query(postgres_dsn, "SELECT id FROM numbers ORDER BY id") == [(1,), (2,), (3,)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.quarantine") == [(0,)]
