"""Keyed state through real Spark jobs: what a transform is given, what an epoch leaves, and what stops a pipeline."""

from collections.abc import Callable
from pathlib import Path

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text
from epochline.config.discovery import find
from epochline.declare.names import split_table
from epochline.errors import EpochlineError, StateError
from epochline.protocol.epoch import Epoch
from tests.integration.spark.conftest import ROOT, Runs, Servers

COUNTING = '''
"""Words of lines, counted on from the state."""

from pyspark.sql import functions as F


def words(lines):
    return lines.select(F.explode(F.split("value", " ")).alias("word"))


def count(lines, state):
    held = state["word_count"]
    new = words(lines).groupBy("word").agg(F.count("*").alias("more"))
    counted = new.join(held, "word", "left").select(
        "word", (F.coalesce("count", F.lit(0)) + F.col("more")).cast("bigint").alias("count")
    )
    seen = held.select(F.concat_ws("=", "word", F.col("count").cast("string")).alias("seen"))
    return {"t_wordcount": counted, "given": seen, "word_count": counted}


def count_on(lines, state):
    made = count(lines, {"word_count": state["u_word_count"]})
    return {"u_wordcount": made["t_wordcount"], "u_given": made["given"], "u_word_count": made["word_count"]}
'''
COLUMNS = {"word": "text", "count": "bigint"}
DECLARED = find("word_count", ROOT / "dags" / "examples")
RESTORABLE = DECLARED.model_copy(
    update={"sinks": tuple(one.model_copy(update={"before_images": 10}) for one in DECLARED.sinks)}
)


class Counting(Runs):
    """A pipeline that counts words."""

    def counts(self, table: str = "word_count") -> dict[str, int]:
        schema, _ = split_table(self.pipeline.states[0].table)
        return dict(self.database.query(f"SELECT word, count FROM {schema}.{table}"))

    def both(self) -> dict[str, int]:
        """The counts, which target and state agree about."""
        counts = self.counts()
        assert self.counts("t_wordcount") == counts
        return counts

    def given(self) -> list[str]:
        """What the transform of the last epoch was given."""
        last = "SELECT max(epoch_id) FROM epochline.epochs WHERE state = 'COMMITTED'"
        found = self.database.query(f"SELECT seen FROM given WHERE _epoch = ({last}) ORDER BY 1")
        return [seen for (seen,) in found]


NewCounting = Callable[..., Counting]


@pytest.fixture
def counting(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewCounting:
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(*lines: str, declared: Pipeline | None = None) -> Counting:
        name, source = servers.name, KafkaSource(topics=servers.topic({0: [line.encode() for line in lines]}))
        pipeline = declared or Pipeline(
            name=name, source=source, parse=Text(), transform="counting:count",
            sinks=[
                PostgresTable(table="t_wordcount", mode="upsert", key="word", columns=COLUMNS, aggregated=True),
                PostgresTable(table="given", columns={"seen": "text"}, aggregated=True),
            ],
            state=[StateTable(table="word_count", key="word", columns=COLUMNS, keys="counting:words")],
        )  # fmt: skip
        return Counting(servers, pipeline.model_copy(update={"name": name, "source": source}))

    return make


def test_counts_go_on_from_the_state_and_only_keys_that_occur_are_read_and_written(counting: NewCounting) -> None:
    """C1, C8, S14, X14: absolute counts; a crash before the commit changes nothing; one version per epoch."""
    line = counting("hello world", "hello flink")
    line.epoch()
    assert line.both() == {"hello": 2, "world": 1, "flink": 1}
    assert line.given() == []

    line.produce({0: [b"hello"]})
    planned, who = line.planned()
    line.sealed(planned, who)
    line.crashed(planned, who)
    assert line.counts() == {"hello": 2, "world": 1, "flink": 1}
    line.committed(line.plan(who), who)

    assert line.both() == {"hello": 3, "world": 1, "flink": 1}
    assert line.given() == ["hello=2"]
    assert dict(line.database.query("SELECT word, _epoch FROM word_count")) == {"hello": 2, "world": 1, "flink": 1}
    assert line.database.query("SELECT epoch_id, keys FROM epochline.state ORDER BY 1") == [(1, 3), (2, 3)]


HELLO, INSERT = "WHERE word = 'hello'", "INSERT INTO word_count VALUES"
UNDONE = [
    (f"UPDATE word_count SET count = 7 {HELLO}", "the same number of keys with other values", f"UPDATE word_count SET count = 2 {HELLO}"),
    (f"DELETE FROM word_count {HELLO}", "epoch 1 left 3 keys, it now holds 2 keys", f"{INSERT} ('hello', 2, 1)"),
    (f"{INSERT} ('new', 1, 1)", "it now holds 4 keys", "DELETE FROM word_count WHERE word = 'new'"),
    ("TRUNCATE word_count", "it now holds 0 keys", f"{INSERT} ('hello', 2, 1), ('world', 1, 1), ('flink', 1, 1)"),
]  # fmt: skip
"""Edits of the state, what the refusal says of them, and how they are taken back."""
LASTING = [
    ("DELETE FROM epochline.state_version", "holds 3 keys, though no epoch has written any"),
    ("DROP TABLE word_count", "word_count does not exist"),
]


@pytest.mark.fault("F33")
def test_state_that_is_not_what_the_last_epoch_left_stops_the_pipeline(counting: NewCounting) -> None:
    """S14: before anything is planned, and again before anything is committed.

    Put back, the pipeline goes on: what counts is what the table holds, not who wrote to it.
    """
    line = counting("hello world", "hello flink")
    line.epoch()

    def refused(edit: str, answer: str, epoch: Epoch) -> None:
        before = line.counts("t_wordcount")
        line.database.query(edit)
        with pytest.raises(EpochlineError, match=answer):
            line.commit(epoch.epoch_id)
        with pytest.raises(EpochlineError, match=answer):
            line.preview()
        assert line.counts("t_wordcount") == before

    for edit, answer, undo in UNDONE:
        line.database.query(edit)
        with pytest.raises(StateError, match=answer):
            line.planned()
        line.database.query(undo)
    line.produce({0: [b"hello"]})
    sealed = line.sealed(*line.planned())
    for edit, answer, undo in UNDONE:
        refused(edit, answer, sealed)
        line.database.query(undo)
    line.commit(sealed.epoch_id)
    assert line.both() == {"hello": 3, "world": 1, "flink": 1}

    line.produce({0: [b"hello"]})
    planned, who = line.planned()
    sealed = line.sealed(planned, who)
    for edit, answer in LASTING:
        refused(edit, answer, sealed)
    line.crashed(planned, who)
    with pytest.raises(EpochlineError, match="word_count does not exist"):
        line.planned()


def test_a_restored_word_count_goes_on_from_the_savepoint(counting: NewCounting) -> None:
    """E7, C12, C13: state, target and head go back together; what came since is read again, and counted once."""
    line = counting(*["hello world"] * 5, declared=RESTORABLE)
    line.epoch()
    line.operate("savepoint", name="five")
    line.produce({0: [b"hello moon", b"hello"]})
    line.epoch()
    assert line.both() == {"hello": 7, "world": 5, "moon": 1}

    line.operate("restore", name="five")

    assert line.both() == {"hello": 5, "world": 5}
    assert line.database.query("SELECT next_offset FROM epochline.heads") == [(5,)]
    line.produce({0: [b"hello world"]})
    line.epoch()
    assert line.both() == {"hello": 8, "world": 6, "moon": 1}


def test_a_new_pipeline_counts_on_from_a_savepoint(counting: NewCounting) -> None:
    """E7: do counts go on from the savepoint, or from 0?"""
    line = counting(*["hello world"] * 5)
    line.epoch()
    line.operate("savepoint", name="five")
    tables = {"t_wordcount": "u_wordcount", "given": "u_given", "word_count": "u_word_count"}
    other = line.pipeline.model_copy(
        update={
            "name": f"{line.name}-2",
            "transform": "counting:count_on",
            "sinks": tuple(one.model_copy(update={"table": tables[one.table]}) for one in line.pipeline.targets),
            "state": tuple(one.model_copy(update={"table": tables[one.table]}) for one in line.pipeline.state),
        }
    )
    second = Counting(line.servers, other)

    second.operate("restore", name="five", of=line.name)

    assert second.counts("u_word_count") == {"hello": 5, "world": 5}
    line.produce({0: [b"hello world"]})
    assert second.epoch().epoch_id == 2
    assert second.counts("u_word_count") == second.counts("u_wordcount") == {"hello": 6, "world": 6}
    assert line.counts() == {"hello": 5, "world": 5}


def test_a_pipeline_that_begins_without_a_savepoint_begins_from_nothing(counting: NewCounting) -> None:
    """E7: hello once, though it was there five times before the pipeline was."""
    line = counting(*["hello world"] * 5)
    latest = line.pipeline.source.model_copy(update={"startup": "latest"})
    line.pipeline = line.pipeline.model_copy(update={"source": latest})
    assert line.planned()[0].epoch is None
    line.produce({0: [b"hello world"]})

    line.epoch()

    assert line.both() == {"hello": 1, "world": 1}
