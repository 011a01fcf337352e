"""What operators bring into a target from a terminal: `epochline extend-back` and `requeue`, with Spark, to the end."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline.kafka.source import KafkaOffsets
from tests.commands import in_processes
from tests.databases import query

DECLARED = """
from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

columns = {{"id": "bigint"}}
pipeline = Pipeline(
    name="terminal",
    source=KafkaSource(topics="{topic}", startup="latest"),
    parse="numbers_of_lines:parse",
    record=columns,
    sinks=PostgresTable(table="numbers", columns=columns),
    bad_records="quarantine",
    spark_connection="spark_of_terminal",
)
dag = epoch_dag(pipeline)
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


@pytest.fixture
def terminal(postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path) -> Terminal:
    """Runs a command of `epochline` in a process of its own and gives what it said; the pipeline is declared."""
    # Another test's ledger wrote this mirror; beside a new database it would mean that the ledger went back in time.
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.terminal")
    (tmp_path / "terminal.py").write_text(DECLARED.format(topic=topic_name))
    (tmp_path / "numbers_of_lines.py").write_text(PARSE.format(mended=""))
    return in_processes(
        tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        AIRFLOW_CONN_SPARK_OF_TERMINAL=json.dumps({"conn_type": "spark", "host": "local[1]"}),
    )  # fmt: skip


@pytest.mark.slow
def test_the_past_is_extended_and_the_quarantine_requeued_from_a_terminal(
    terminal: Terminal, postgres_dsn: str, topic_name: str, tmp_path: Path
) -> None:
    """B1, E2: the same use cases as in Airflow; each record once, and the ledger says who asked and why."""
    fed = tmp_path / "lines"
    fed.write_text("".join(f"{number}\n" for number in range(50)))
    terminal("migrate")
    terminal("feed", str(fed), "--topic", topic_name)
    assert "nothing to read" in terminal("run", "terminal")
    fed.write_text("50\n51!\n52\n53!\n")
    terminal("feed", str(fed), "--topic", topic_name)
    (newest,) = json.loads(terminal("run", "terminal", "--json"))

    extended = json.loads(
        terminal(
            "extend-back", "terminal", "earliest", "--step", "20", "--reason", "asked for", "--yes", "--json",
        )
    )  # fmt: skip
    (tmp_path / "numbers_of_lines.py").write_text(PARSE.format(mended=".rstrip('!')"))
    requeued = terminal("requeue", "terminal", "--everything", "--reason", "the parse was mended", "--yes")
    actions = json.loads(terminal("actions", "terminal", "--json"))

    assert (newest["records_read"], newest["records_quarantined"]) == (4, 2)
    assert [one["records_read"] for one in extended] == [20, 20, 10]
    assert "is committed: 2 records read, 2 passed" in requeued
    assert query(postgres_dsn, "SELECT id FROM numbers ORDER BY id") == [(number,) for number in range(54)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.quarantine WHERE requeued_by IS NULL") == [(0,)]
    assert [(one["action"], one["reason"]) for one in actions] == [
        *[("extend-back", "asked for")] * 3,
        ("requeue", "the parse was mended"),
    ]
    assert all("@" in one["actor"] for one in actions)


@pytest.mark.slow
def test_an_epoch_is_replayed_and_promoted_from_a_terminal(
    terminal: Terminal, postgres_dsn: str, topic_name: str, tmp_path: Path
) -> None:
    """What a mended parse makes of an epoch is shown first, and takes its place where that is said."""
    fed = tmp_path / "lines"
    terminal("migrate")
    fed.write_text("0\n")  # lies before the origin, as the pipeline begins at the end
    terminal("feed", str(fed), "--topic", topic_name)
    assert "nothing to read" in terminal("run", "terminal")
    fed.write_text("1\n2!\n3\n")
    terminal("feed", str(fed), "--topic", topic_name)
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


COUNTED = """
from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text, epoch_dag

columns = {{"word": "text", "count": "bigint"}}
pipeline = Pipeline(
    name="word_count",
    source=KafkaSource(topics="{topic}"),
    parse=Text(),
    transform="words_of_lines:count",
    sinks=PostgresTable(table="t_words", mode="upsert", key="word", columns=columns, aggregated=True),
    state=StateTable(table="words_held", key="word", columns=columns, keys="words_of_lines:words"),
    spark_connection="spark_of_terminal",
)
dag = epoch_dag(pipeline)
"""
WORDS = """
from pyspark.sql import functions as F

def words(lines):
    return lines.select(F.explode(F.split("value", " ")).alias("word"))

def count(lines, state):
    new = words(lines).groupBy("word").agg(F.count("*").alias("more"))
    counted = new.join(state["words_held"], "word", "left").select(
        "word", (F.coalesce("count", F.lit(0)) + F.col("more")).cast("bigint").alias("count")
    )
    return {"t_words": counted, "words_held": counted}
"""
PAGE = (Path(__file__).parents[2] / "docs" / "state-and-time.md").read_text()


@pytest.mark.slow
def test_state_that_somebody_corrected_is_accepted_by_the_page_s_command(
    terminal: Terminal, postgres_dsn: str, topic_name: str, tmp_path: Path
) -> None:
    """S14: edited state stops the pipeline and says how to go on; accepted, the next epoch counts on from it."""
    (tmp_path / "counted.py").write_text(COUNTED.format(topic=topic_name))
    (tmp_path / "words_of_lines.py").write_text(WORDS)
    fed = tmp_path / "lines"
    terminal("migrate")
    fed.write_text("hello world\nhello flink\n")
    terminal("feed", str(fed), "--topic", topic_name)
    terminal("run", "word_count")
    query(postgres_dsn, "UPDATE words_held SET count = 7 WHERE word = 'hello'")
    fed.write_text("hello\n")
    terminal("feed", str(fed), "--topic", topic_name)

    refused = terminal("run", "word_count", code=1)
    (command,) = (line for line in PAGE.splitlines() if line.startswith("epochline accept-state"))
    terminal(*shlex.split(command)[1:], "--yes")
    terminal("run", "word_count")

    assert "accept-state" in refused
    counted = query(postgres_dsn, "SELECT word, count FROM t_words ORDER BY word")
    assert counted == [("flink", 1), ("hello", 8), ("world", 1)]
