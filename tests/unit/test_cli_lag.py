"""`epochline lag` of many pipelines: each server is opened once, and one that cannot be reached costs one attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from epochline import cli
from epochline.adapters import Adapters
from epochline.cli import database
from epochline.cli.standing import UNKNOWN
from epochline.declare.source import KafkaSource
from epochline.errors import EpochlineError, LedgerError, LedgerUnavailableError, SourceUnavailableError
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.planning import SourceView
from tests.unit.partitions import tp, view
from tests.ways import way_on

NAMES = ("first", "second", "third")
DECLARED = """
from epochline import Bytes, KafkaSource, Pipeline, PostgresTable, epoch_dag

for name in {names}:
    table = PostgresTable(table=name, columns={{"value": "bytea"}})
    epoch_dag(Pipeline(name=name, source=KafkaSource(topics=name), parse=Bytes(), sinks=table))
"""

MIRROR = {
    "number": 3, "generation": 1, "epoch_id": 9, "topics": ["second"], "age": timedelta(hours=1), "after": []
}  # fmt: skip


class Servers:
    """A ledger and a Kafka that count how often they are opened and closed, and fail where a test wants it."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.unreachable: dict[str, EpochlineError] = {}
        self.refused: dict[str, EpochlineError] = {}
        self.partition = 0
        self.leader_epoch = 3
        self.ends: int | None = 9
        self.group: dict[tuple[str, int], MirroredOffset] = {}
        self.known = False
        """Whether the ledger knows what the group of the second pipeline shows, and that it mirrored more since."""

    @contextmanager
    def open(self, server: str, _where: str) -> Iterator[Servers]:
        self.opened.append(server)
        if server in self.unreachable:
            raise self.unreachable[server]
        yield self
        self.closed.append(server)

    def ask(self, opened: Servers, name: str, *, pipeline: str, **_given: str) -> list[dict[str, Any]]:
        if pipeline in self.refused:
            raise self.refused[pipeline]
        if name == "standing":
            return [{**UNKNOWN, "cluster_id": "c", "last_epoch_id": 1, "pipeline": pipeline, "aborts": 0}]
        if name == "knows_token":
            return [{"known": self.known}]
        if name == "last_mirror":
            return [MIRROR] if pipeline == "second" and self.known else []
        partition = self.partition if pipeline == "second" else 0
        head = {"topic": pipeline, "topic_id": "one", "partition": partition, "origin_offset": 0, "next_offset": 4}
        return [head | {"epoch_id": 1, "leader_epoch": 3, "seconds": 2.0}]

    def look(self, source: KafkaSource) -> SourceView:
        there = [view(tp(number, topic, "one"), 3, 9) for topic in source.topics for number in (0, 1)]
        return SourceView(cluster_id="c", partitions=[replace(one, leader_epoch=self.leader_epoch) for one in there])

    def leader_epoch_ends(self, epochs: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {tp: self.ends if tp.topic == "second" else 9 for tp in epochs}

    def confirm(self, group: str) -> None:
        """Every broker says the same."""

    def mirrored(self, group: str) -> dict[tuple[str, int], MirroredOffset]:
        return self.group if group.endswith("second") else {}

    def group_retention(self) -> timedelta | None:
        return timedelta(days=7)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, dags: Path) -> Servers:
    (dags / "declared.py").write_text(DECLARED.format(names=NAMES))
    made = Servers()
    monkeypatch.setattr(Adapters, "postgres_dsn", lambda adapters, connection: "postgresql://")
    monkeypatch.setattr(Adapters, "kafka", lambda adapters, connection: made.open("kafka", connection))
    monkeypatch.setattr(database, "session", partial(made.open, "ledger"))
    monkeypatch.setattr(database, "ask", made.ask)
    return made


def lag(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["lag", *arguments])


def test_one_session_and_one_client_serve_all_pipelines_and_are_closed(servers: Servers) -> None:
    shown = lag("--json")

    assert shown.exit_code == 0
    assert sorted(servers.opened) == sorted(servers.closed) == ["kafka", "ledger"]
    # The second partition was added to a topic that the ledger knows: it begins at offset 0.
    assert [(row["pipeline"], row["head"], row["lag"]) for row in json.loads(shown.output)] == [
        (name, head, lag) for name in NAMES for head, lag in ((4, 5), (0, 9))
    ]


@pytest.mark.parametrize(
    ("server", "error"),
    [("kafka", SourceUnavailableError("no Kafka there")), ("ledger", LedgerUnavailableError("no ledger there"))],
    ids=["kafka", "ledger"],
)
def test_a_server_that_cannot_be_reached_is_tried_once_and_said_for_each_pipeline(
    servers: Servers, server: str, error: EpochlineError
) -> None:
    servers.unreachable[server] = error

    shown = lag()

    assert shown.exit_code == 1
    assert servers.opened.count(server) == 1
    assert [f"{name}: cannot be asked: {error}" in shown.output for name in NAMES] == [True, True, True]


def test_a_pipeline_that_cannot_be_asked_hides_no_other_and_alone_it_fails_the_command(servers: Servers) -> None:
    servers.refused["second"] = LedgerError("the ledger is missing")

    shown = lag()

    assert shown.exit_code == 1
    assert "second: cannot be asked: the ledger is missing" in shown.output
    assert "first: 14 records behind" in shown.output
    assert "third: 14 records behind" in shown.output
    assert lag("second").exception is servers.refused["second"]


STALE = MirroredOffset(offset=4, generation=1, epoch_id=8, token="a token")


@pytest.mark.parametrize(
    ("kafka", "states", "goes_on"),
    [
        ({"partition": 5}, {5: "partition gone", 0: "stands", 1: "stands"}, "second"),
        ({"leader_epoch": 4, "ends": 2}, {0: "log truncated", 1: "stands"}, "second"),
        ({"leader_epoch": 4, "ends": None}, {0: "log truncated", 1: "stands"}, "second"),
        # The group shows more than the log's end does: other topics may be other ones, too.
        ({"group": {("second", 0): STALE}, "known": True, "leader_epoch": 4, "ends": 2},
         {0: "Kafka behind", 1: "Kafka behind"}, "--cluster --at truncation"),
        ({"known": True}, {0: "Kafka behind", 1: "Kafka behind"}, "--cluster --at head"),
    ],
    ids=["partition gone", "truncated and grown", "a log of other leaders", "Kafka behind and truncated", "group gone"],
)  # fmt: skip
def test_a_pipeline_that_its_next_plan_would_refuse_stands_and_names_the_command_that_goes_on(
    servers: Servers, kafka: dict[str, Any], states: dict[int, str], goes_on: str
) -> None:
    for name, value in kafka.items():
        setattr(servers, name, value)

    shown = lag("--fail-above", "1000")
    rows = [row for row in json.loads(lag("--json").output) if row["pipeline"] == "second"]

    assert shown.exit_code == 3
    assert {(row["topic"], row["partition"]): row["state"] for row in rows} == {
        ("second", partition): state for partition, state in states.items()
    }
    assert {way_on(row["reason"]) for row in rows} == {f"adopt-topic second {goes_on} --reason …"}
    assert 4 in [row["head"] for row in rows]
    assert "\nthird: " in shown.output


def test_a_broken_declaration_is_named_and_the_other_pipelines_are_shown(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from epochline import KafkaSource, epoch_dag\nKafkaSource(subject='a')\n")

    shown = lag()

    assert shown.exit_code == 1
    assert f"broken declaration: {tmp_path / 'broken.py'}:2: " in shown.output
    assert "third: 14 records behind" in shown.output
    assert lag("third").exit_code == 0
