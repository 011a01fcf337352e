"""Savepoint files that are carried into another database: a new pipeline goes on there, or is refused by name."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline import PostgresTable, StateTable
from epochline.errors import ActionRefusedError, SavepointFileError
from epochline.operations import Request
from tests.integration.counting import Counting
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import delete_topic, make_topic
from tests.integration.operating import exported, imported
from tests.integration.sinks_world import SinksPipeline, in_process, new_world

ORDER = Request(actor="ada", reason="to another database")
NewDatabase = Callable[[], str]


@pytest.fixture
def world(postgres_dsn: str, kafka_bootstrap: str) -> SinksPipeline:
    """Three lines are committed before a savepoint, one after it, and one waits."""
    made = new_world(postgres_dsn, kafka_bootstrap)
    made.epoch("a", "b", "c")
    made.it.act("savepoint", ORDER, name="before")
    made.epoch("d")
    made.produce("e")
    return made


@pytest.fixture
def second(world: SinksPipeline, new_database: NewDatabase) -> InProcess:
    """A pipeline of another name in another database, which reads the same topic."""
    pipeline = world.it.pipeline.model_copy(update={"name": "second"})
    return in_process(new_database(), world.bootstrap, pipeline).create()


def test_a_new_pipeline_in_another_database_reads_on_where_the_savepoint_stood(
    world: SinksPipeline, second: InProcess, tmp_path: Path
) -> None:
    """C11, C13, INV-1: no record before it, each after it once; the first pipeline goes on undisturbed."""
    imported(second, exported(world.it, tmp_path / "file"))

    second.act("restore", ORDER, name="before", of=world.it.name)
    second.epoch()

    assert second.sql("SELECT value FROM lines ORDER BY 1") == [("d",), ("e",)]
    world.it.epoch()
    assert world.it.sql("SELECT string_agg(value, '' ORDER BY value) FROM lines") == [("abcde",)]
    with pytest.raises(ActionRefusedError, match="second is not new"):
        second.act("restore", ORDER, name="before", of=world.it.name)


def test_a_pipeline_of_the_same_name_there_does_not_take_it_for_its_own(
    world: SinksPipeline, new_database: NewDatabase, tmp_path: Path
) -> None:
    """C12: its epochs have the same numbers, and other records."""
    source = world.it.pipeline.source.model_copy(update={"mirror": False})
    pipeline = world.it.pipeline.model_copy(update={"source": source})
    there = in_process(new_database(), world.bootstrap, pipeline).create()
    there.epoch()
    imported(there, exported(world.it, tmp_path / "file"))

    with pytest.raises(ActionRefusedError, match="came from a file; a new pipeline begins from it"):
        there.act("restore", ORDER, name="before")

    assert there.sql("SELECT count(*), max(_epoch) FROM lines") == [(5, 1)]


def test_a_log_that_is_not_the_one_of_the_savepoint_is_refused(
    world: SinksPipeline, second: InProcess, tmp_path: Path
) -> None:
    """INV-8: the topic was made again, and holds as many records."""
    imported(second, exported(world.it, tmp_path / "file"))
    delete_topic(world.bootstrap, world.source)
    make_topic(world.bootstrap, world.source, 2)
    world.produce("1", "2", "3", "4", "5")

    with pytest.raises(ActionRefusedError, match=f"the source no longer has {world.source}-. as it was then"):
        second.act("restore", ORDER, name="before", of=world.it.name)

    assert second.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]


NUMBERS = {"person": "bigint", "amount": "bigint", "bought": "bigint"}


class Shopping(Counting):
    """A pipeline with a state of numbers alone, whose columns are in no order of the alphabet."""

    def __init__(self, dsn: str, name: str) -> None:
        super().__init__(dsn, dsn, create=False)
        state = StateTable(table="words", key="person", columns=NUMBERS, keys="pipelines.word_count:words")
        table = PostgresTable(table="t", mode="upsert", key="person", columns=NUMBERS, aggregated=True)
        self.pipeline = self.pipeline.model_copy(update={"name": name, "state": (state,), "sinks": (table,)})
        self.create()

    def state_now(self) -> list[tuple[int, ...]]:
        return list(self.sql("SELECT person, amount, bought FROM words ORDER BY 1"))


def test_state_has_the_same_values_in_the_same_columns_there(
    postgres_dsn: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    """C11, C13, INV-2: rows in a file have no names, and their digest is equal in any order of the columns."""
    it, there = Shopping(postgres_dsn, "orders"), Shopping(new_database(), "second")
    it.epoch({"person": 7, "amount": 20, "bought": 3}, {"person": 8, "amount": 0, "bought": 1})
    it.act("savepoint", ORDER, name="before")
    imported(there, exported(it, tmp_path / "file"))
    there.kafka.produce("orders", 0, 2)

    there.act("restore", ORDER, name="before", of="orders")

    assert there.state_now() == it.state_now() == [(7, 20, 3), (8, 0, 1)]
    there.epoch({"person": 7, "amount": 21, "bought": 4})
    assert there.state_now() == [(7, 21, 4), (8, 0, 1)]


def test_a_file_of_a_version_that_lost_the_order_of_the_columns_is_refused(
    postgres_dsn: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    """C11: its columns are an object, in the order of the alphabet."""
    it, there = Shopping(postgres_dsn, "orders"), Shopping(new_database(), "second")
    it.epoch({"person": 7, "amount": 20, "bought": 3})
    it.act("savepoint", ORDER, name="before")
    with zipfile.ZipFile(exported(it, tmp_path / "file")) as now, zipfile.ZipFile(tmp_path / "older", "w") as older:
        described = json.loads(now.read("savepoint.json"))
        [state] = described["states"]
        state["columns"] = dict(state["columns"])
        older.writestr("state-0.txt", now.read("state-0.txt"))
        older.writestr("savepoint.json", json.dumps(described, sort_keys=True))

    with pytest.raises(SavepointFileError, match="lost the order of the columns"):
        imported(there, tmp_path / "older")

    assert there.sql("SELECT count(*) FROM epochline.savepoint") == [(0,)]
