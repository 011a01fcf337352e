"""Every command of the runbook's actions, on a real ledger and a real Kafka, and what it prints."""

import io
import re
import shlex
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from epochline import Pipeline
from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator import LEASE, begin, plan
from epochline.kafka.source import KafkaOffsets
from epochline.operations import ACTIONS
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import Head
from tests.commands import Call
from tests.databases import query, set_aside
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import Topic, delete_records, produce
from tests.integration.people import Patch
from tests.integration.sinks_world import in_process

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def blocks(section: str) -> list[str]:
    """What a section shows of a terminal."""
    (text,) = re.findall(rf"^## {section}$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


BLOCKS, UPGRADE = blocks("What an operator may do"), blocks("Upgrades")
DECLARED = """
from epochline import Bounds, Json, KafkaSource, Pipeline, PostgresTable, StateTable, epoch_dag

dag = epoch_dag(Pipeline(
    name="shop", source=KafkaSource(topics="shop", startup="{startup}"), parse=Json(columns={{"id": "bigint"}}),
    sinks=PostgresTable(table="shop", columns={{"id": "bigint"}}), {more}
))
"""
STATE = """
    transform="pipelines.word_count:count",
    state=StateTable(table="shop_seen", key="id", columns={"id": "bigint", "count": "bigint"}),
"""
RUN = Run(dag_id="shop", run_id="manual__1", host="here")


def named(block: str) -> str:
    return block.split()[2]


def test_the_page_has_every_action() -> None:
    assert {named(block) for block in BLOCKS} | {"resume"} == set(ACTIONS) | {"janitor"}


@dataclass
class Shop:
    dsn: str
    kafka: str
    folder: Path
    line: InProcess | None = None

    @property
    def declared(self) -> Pipeline:
        return discovery.find("shop")

    def declare(self, startup: str = "earliest", more: str = "") -> None:
        (self.folder / "shop.py").write_text(DECLARED.format(startup=startup, more=more))

    def topic(self, records: int) -> None:
        Topic(self.kafka, "shop").make_again(1)
        self.produce(records)

    def produce(self, records: int) -> None:
        produce(self.kafka, "shop", [b'{"id": %d}' % number for number in range(records)], partition=0)

    def migrate(self) -> None:
        with adapters().ledger(self.declared).transaction() as tx:
            tx.targets.create(self.declared)

    def commit(self) -> None:
        if self.line is None:
            self.line = in_process(self.dsn, self.kafka, self.declared)
        self.line.epoch()


def before(shop: Shop, action: str, call: Callable[[str], str]) -> None:
    """Bring about what the action's section describes."""
    bounds = "bounds=Bounds(most_rows=9)" if action == "approve" else ""
    shop.declare("latest" if action == "extend-back" else "earliest", bounds)
    shop.topic(10)
    shop.migrate()
    if action in ("accept-state", "accept-ledger", "savepoint", "restore", "delete-savepoint", "forget"):
        shop.commit()
    if action == "accept-state":
        shop.declare(more=STATE)
        shop.migrate()
        query(shop.dsn, "INSERT INTO shop_seen VALUES (1, 7)")
    if action == "accept-ledger":
        shop.produce(5)
        source = adapters().offsets(shop.declared)
        [log] = source.look(shop.declared.source).partitions
        head = Head(tp=log.tp, origin=0, next_offset=15, epoch_id=2)
        source.mirror(shop.declared.consumer_group, [head], 1, 2, str(uuid.uuid4()))  # as the newer ledger did
    if action in ("restore", "delete-savepoint"):
        call('epochline savepoint shop before-the-upgrade --reason "version 2 goes live" --yes')
    if action == "restore":
        shop.produce(5)
        shop.commit()
    if action == "approve":
        shop.line = in_process(shop.dsn, shop.kafka, shop.declared)
        shop.line.to_sealed(RUN)
    if shop.line is not None:
        return
    ledger = adapters().ledger(shop.declared)
    epoch = plan(ledger, adapters().offsets(shop.declared), shop.declared, RUN).epoch
    if epoch is not None:
        begin(ledger, "shop", epoch.epoch_id, RUN, lease=LEASE)
    if action not in ("abort", "janitor", "extend-back"):
        call('epochline abort shop 1 --reason "the test needs no epoch" --yes')
    if action == "declare-loss":
        delete_records(shop.kafka, "shop", {0: 4})
    if action == "adopt-topic":
        shop.topic(3)
    if action == "requeue":
        for offset in (2, 3):
            set_aside(shop.dsn, offset, pipeline="shop", topic="shop")


@pytest.mark.parametrize("block", BLOCKS + UPGRADE, ids=named)
def test_a_command_of_the_page_prints_what_the_page_shows(
    block: str, on_servers: Call, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.shop")

    def call(line: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        return on_servers(*shlex.split(line)[1:])[1]

    before(Shop(postgres_dsn, kafka_bootstrap, tmp_path), named(block), call)
    for step in block.split("$ ")[1:]:
        command, _, shown = step.partition("\n")

        printed = call(command)

        shown = shown.replace("[y/N]: n\n", "[y/N]: ")  # The terminal shows the answer, a pipe does not.
        pattern = ".*?".join(re.escape(piece) for piece in shown.strip().split("…"))
        assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{command}\n{printed}"
