"""What a pipeline promises, whatever its source: Kafka, a counter, a growing table, positions of a user's own (N2)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from epochline import CustomSource, Json, KafkaSource, Pipeline, PostgresTable, Text
from epochline.cli.connections import in_environment
from epochline.coordinator import PlanOutcome
from epochline.errors import DataLossError, SealRefusedError, SourceError, SourceUnavailableError
from epochline.operations import Request
from epochline.protocol.epoch import Interval
from epochline.sources.positions import SourcePositions
from tests.databases import as_connection, query
from tests.integration.guarantee import broken
from tests.integration.in_process import InProcess, counter, from_source, growing, over_source
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.people import Patch
from tests.integration.sinks_world import in_process


@dataclass
class Kafka:
    declared: KafkaSource
    bootstrap: str
    held: int = 0

    def grow(self, numbers: int) -> None:
        values = [str(one).encode() for one in range(self.held + 1, numbers + 1)]
        produce(self.bootstrap, self.declared.topics[0], values, partition=0)
        self.held = numbers


@dataclass
class Scripted:
    """Every position, or every third one."""

    declared: CustomSource
    folder: Path
    step: int

    def grow(self, numbers: int) -> None:
        self.write(positions="\n".join(str(one * self.step) for one in range(numbers)), end=str(numbers * self.step))

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)


@dataclass
class Counting:
    """The library's counter, whose clock stands still: a change of its options gives it more numbers."""

    declared: CustomSource
    world: Callable[[], InProcess]

    def grow(self, numbers: int) -> None:
        self.declared = counter(numbers)
        one = self.world()
        one.pipeline = one.pipeline.model_copy(update={"source": self.declared})
        one.source, one.read = SourcePositions(self.declared.spec), from_source(self.declared)


@dataclass
class Table:
    """The library's growing table, with ids that no row has."""

    declared: CustomSource
    dsn: str
    held: int = 0

    def grow(self, numbers: int) -> None:
        one = "SELECT nextval('growing_id_seq'); INSERT INTO growing (value) VALUES (%s);"
        added = range(self.held + 1, numbers + 1)
        query(self.dsn, one * len(added), *map(str, added))
        self.held = numbers


def scripted(folder: Path, step: int = 1) -> Scripted:
    name, options = "scripted_source:ScriptedSource", {"folder": str(folder)}
    positions = "dense" if step == 1 else "sparse"
    return Scripted(CustomSource(source=name, options=options, label="numbers", positions=positions), folder, step)


@dataclass
class Numbers:
    """A pipeline on one kind of source."""

    kind: Any
    world: InProcess

    @property
    def numbers(self) -> list[int]:
        return sorted(int(one) for (one,) in self.world.sql("SELECT value FROM numbers"))

    def reached(self) -> list[int]:
        return [one for (one,) in self.world.sql("SELECT next_offset FROM epochline.heads ORDER BY partition")]

    def assert_whole(self, numbers: int) -> None:
        """Every number once, and every check of docs/guarantee.md."""
        assert self.numbers == list(range(1, numbers + 1))
        assert broken(self.world.sql, self.world.pipeline.name, "numbers") == {}


def pipeline_of(kind: Any, parse: Any = None) -> Pipeline:
    sink, name = PostgresTable(table="numbers", columns={"value": "text"}), f"numbers-{uuid.uuid4().hex[:8]}"
    return Pipeline(name=name, source=kind.declared, parse=parse or Text(), sinks=sink, bad_records="quarantine")


def line_of(kind: Any, dsn: str) -> Numbers:
    return Numbers(kind, over_source(dsn, pipeline_of(kind)))


@pytest.fixture(params=["kafka", "counter", "table", "dense", "sparse"])
def line(request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path, monkeypatch: Patch) -> Numbers:
    if request.param == "table":
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", as_connection(postgres_dsn))
        query(postgres_dsn, "CREATE TABLE growing (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value text)")
        table = Table(growing("growing", label="numbers", columns=["value"]), postgres_dsn)
        declared = pipeline_of(table, Json(columns={"value": "text"}))
        return Numbers(table, over_source(postgres_dsn, declared, in_environment("shop")))
    if request.param == "kafka":
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        kind = Kafka(KafkaSource(topics=make_topic(bootstrap, request.getfixturevalue("topic_name"), 1)), bootstrap)
        return Numbers(kind, in_process(postgres_dsn, bootstrap, pipeline_of(kind)).create())
    if request.param == "counter":
        made = line_of(Counting(counter(0), lambda: made.world), postgres_dsn)
        return made
    return line_of(scripted(tmp_path, 1 if request.param == "dense" else 3), postgres_dsn)


@pytest.fixture
def dense(postgres_dsn: str, tmp_path: Path) -> Numbers:
    return line_of(scripted(tmp_path), postgres_dsn)


@pytest.fixture
def sparse(postgres_dsn: str, tmp_path: Path) -> Numbers:
    return line_of(scripted(tmp_path, 3), postgres_dsn)


def test_three_epochs_one_of_them_read_twice_give_every_number_once(line: Numbers) -> None:
    """N2, X15: an attempt is lost between emitting and remembering. The position is the ledger's, so nothing doubles."""
    line.kind.grow(5)
    line.world.epoch()
    line.kind.grow(12)
    planned, run, _ = line.world.staged()
    line.kind.grow(20)

    line.world.finish(planned, run)  # the second attempt, after the first was read and not sealed
    line.world.epoch()

    line.assert_whole(20)


def test_an_epoch_takes_what_was_planned_and_not_what_came_since(line: Numbers) -> None:
    """INV-3."""
    line.kind.grow(6)
    planned, run = line.world.planned()
    line.kind.grow(9)
    line.world.finish(planned, run)

    line.assert_whole(6)


def test_a_record_limit_cuts_epochs_and_loses_nothing(line: Numbers) -> None:
    line.kind.grow(10)
    epochs = 0
    while epochs < 20:
        planned, run = line.world.asked_to_plan(record_limit=4)
        if planned.outcome is PlanOutcome.NOTHING_TO_READ:
            break
        line.world.finish(planned, run)
        epochs += 1

    assert 1 < epochs < 10
    line.assert_whole(10)


def test_a_source_that_was_made_again_stops_the_pipeline_until_it_is_adopted(dense: Numbers) -> None:
    dense.kind.grow(4)
    dense.world.epoch()
    dense.kind.write(identity="second")
    with pytest.raises(DataLossError, match="numbers was deleted and made again") as raised:
        dense.world.planned()
    assert f"adopt-topic {dense.world.pipeline.name} numbers" in str(raised.value)

    dense.world.act("adopt-topic", Request(actor="ada", reason="it moved"), topic="numbers")
    dense.world.epoch()

    assert dense.numbers == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("files", "said"), [({"start": "6"}, "retention passed"), ({"end": "2"}, "truncated")], ids=["start", "end"]
)
def test_positions_that_are_gone_stop_the_pipeline(dense: Numbers, files: dict[str, str], said: str) -> None:
    dense.kind.grow(4)
    dense.world.epoch()
    dense.kind.grow(9)
    dense.kind.write(**files)

    with pytest.raises(DataLossError, match=said):
        dense.world.planned()
    assert dense.reached() == [4]


def test_a_source_that_was_made_again_while_it_was_read_is_not_sealed(dense: Numbers) -> None:
    """INV-9."""
    dense.kind.grow(4)
    _, run, ticket = dense.world.staged()
    dense.kind.write(identity="second")

    with pytest.raises(DataLossError, match="was deleted and made again"):
        dense.world.seal(ticket, run)
    assert dense.reached() == [0]


def test_a_sparse_read_that_the_source_does_not_confirm_is_not_sealed(sparse: Numbers) -> None:
    """INV-9: counting proves what was read."""
    sparse.kind.grow(4)
    planned, run, ticket = sparse.world.staged()
    sparse.kind.write(count="5")
    with pytest.raises(SealRefusedError, match="the source counts 5 records, and 4 were read"):
        sparse.world.seal(ticket, run)

    sparse.kind.write(count="4")
    sparse.world.seal(ticket, run)
    sparse.world.commit(planned)
    assert sparse.reached() == [12]


def test_positions_have_no_times_so_an_interval_is_refused(dense: Numbers) -> None:
    dense.kind.grow(4)
    interval = Interval(start=datetime(2026, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 2, tzinfo=UTC))

    with pytest.raises(SourceError, match="knows no positions by time"):
        dense.world.planned(interval=interval)


def test_a_source_that_is_down_plans_nothing_and_says_that_a_retry_helps(dense: Numbers) -> None:
    dense.kind.grow(4)
    dense.kind.write(down="")

    with pytest.raises(SourceUnavailableError, match="source numbers does not say what it has: ConnectionError"):
        dense.world.planned()


def test_the_class_that_the_page_shows_reads_the_lines_of_files(
    postgres_dsn: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    (code,) = re.findall(r"^```python\n(from collections.*?)^```$", page, re.M | re.S)
    (tmp_path / "lines_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text("1\n2\n3\n")
    declared = CustomSource(source="lines_of_the_page:Lines", options={"folder": str(tmp_path)})
    line = line_of(Scripted(declared, tmp_path, 1), postgres_dsn)

    line.world.epoch()

    assert line.numbers == [1, 1, 2, 2, 3, 3]
    assert line.reached() == [3, 3]
