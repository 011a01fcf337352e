"""`epochline lag` of many pipelines: each server is opened once, and one that cannot be reached costs one attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from epochline import cli
from epochline.cli import connections, database
from epochline.declare.source import KafkaSource
from epochline.errors import EpochlineError, LedgerError, LedgerUnavailableError, SourceUnavailableError
from epochline.protocol.planning import SourceView
from tests.unit.partitions import tp, view

NAMES = ("first", "second", "third")
DECLARED = """
from epochline import Bytes, KafkaSource, Pipeline, PostgresTable, epoch_dag

for name in {names}:
    table = PostgresTable(table=name, columns={{"value": "bytea"}})
    epoch_dag(Pipeline(name=name, source=KafkaSource(topics=name), parse=Bytes(), sinks=table))
"""

NOTHING_DECIDED = dict.fromkeys(f"{what}_{part}" for what in ("paused", "dropped") for part in ("at", "by", "reason"))


class Servers:
    """A ledger and a Kafka that count how often they are opened and closed, and fail where a test wants it."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.unreachable: dict[str, EpochlineError] = {}
        self.refused: dict[str, EpochlineError] = {}
        self.standing: dict[str, dict[str, Any]] = {}
        self.heads: dict[str, dict[str, Any]] = {}

    @contextmanager
    def open(self, server: str, _where: str) -> Iterator[Servers]:
        self.opened.append(server)
        if server in self.unreachable:
            raise self.unreachable[server]
        yield self
        self.closed.append(server)

    def ask(self, opened: Servers, name: str, *, pipeline: str) -> list[dict[str, Any]]:
        if pipeline in self.refused:
            raise self.refused[pipeline]
        if name == "pipeline_status":
            return [NOTHING_DECIDED | self.standing.get(pipeline, {})]
        head = {"topic": pipeline, "topic_id": "one", "partition": 0, "origin_offset": 0, "next_offset": 4}
        return [head | {"epoch_id": 1, "seconds": 2.0} | self.heads.get(pipeline, {})]

    def look(self, source: KafkaSource) -> SourceView:
        (topic,) = source.topics
        return SourceView(cluster_id="c", partitions=[view(tp(number, topic, "one"), 3, 9) for number in (0, 1)])


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    (tmp_path / "declared.py").write_text(DECLARED.format(names=NAMES))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    made = Servers()
    monkeypatch.setattr(connections, "postgres_dsn", lambda connection: "postgresql://")
    monkeypatch.setattr(connections, "opened_offsets", partial(made.open, "kafka"))
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


@pytest.mark.parametrize(
    ("standing", "head", "state", "goes_on"),
    [
        ({"paused_by": "ann"}, {}, "paused", "epochline resume second --reason"),
        ({"paused_by": "epochline"}, {}, "stopped", "epochline resume second --reason"),
        ({"dropped_by": "ann"}, {}, "dropped", "Its history stays"),
        ({}, {"topic_id": "another"}, "topic made again", "epochline adopt-topic second second"),
        ({}, {"next_offset": 12}, "head beyond end", "epochline adopt-topic second second"),
        ({}, {"next_offset": 1}, "unread records deleted", "epochline declare-loss second"),
    ],
    ids=["paused", "stopped", "dropped", "made again", "truncated", "deleted"],
)
def test_a_pipeline_that_stands_has_its_own_word_and_fails_whatever_its_lag(
    servers: Servers, standing: dict[str, Any], head: dict[str, Any], state: str, goes_on: str
) -> None:
    if standing:
        (key,) = standing
        what = key.removesuffix("_by")
        servers.standing["second"] = standing | {f"{what}_at": "2026-11-24", f"{what}_reason": "a test."}
    servers.heads["second"] = head

    shown = lag("--fail-above", "1000")
    rows = json.loads(lag("--json").output)

    assert shown.exit_code == 3
    assert "second: stands. " in shown.output
    assert goes_on in shown.output
    assert "first: 14 records behind" in shown.output
    assert [row["state"] for row in rows if row["partition"] == 0] == ["goes on", state, "goes on"]


def test_a_broken_declaration_is_named_and_the_other_pipelines_are_shown(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from epochline import KafkaSource, epoch_dag\nKafkaSource(subject='a')\n")

    shown = lag()

    assert shown.exit_code == 1
    assert f"broken declaration: {tmp_path / 'broken.py'}:2: " in shown.output
    assert "third: 14 records behind" in shown.output
    assert lag("third").exit_code == 0
