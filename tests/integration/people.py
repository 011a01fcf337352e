"""A pipeline `people` on a real ledger and a real Kafka, and the commands that a test calls on it."""

from pathlib import Path

import pytest

from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator import LEASE, begin, plan
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.epoch import Epoch, Run
from tests.commands import Call
from tests.integration.kafka_topics import make_topic

DECLARED = """
from epochline import Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, StateTable, epoch_dag

pipeline = Pipeline(
    name="people",
    source=KafkaSource(topics="{topic}", records_per_epoch=100),
    {parse},
    sinks=[PostgresTable(table="people", columns={columns}, {table})],
    {more}
)
dag = epoch_dag(pipeline)
"""
Patch = pytest.MonkeyPatch
RUN = Run(dag_id="people", run_id="manual__1", host="somewhere")


@pytest.fixture
def people_topic(on_servers: Call, kafka_bootstrap: str, topic_name: str, tmp_path: Path) -> str:
    """A declared pipeline, its database and its topic of two partitions; the topic's name."""
    declare(tmp_path, topic_name)
    # Each test has a ledger of its own, but they share a broker, which remembers the group.
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.people")
    return make_topic(kafka_bootstrap, topic_name, 2)


def declaration(topic: str, *, parse: str = "", table: str = "", more: str = "", **columns: str) -> str:
    """The text of the file; ``parse``, options of the ``table`` and ``more`` fields are as they are written."""
    columns = columns or {"id": "bigint"}
    parse = parse or f"parse=Json(columns={columns})"
    return DECLARED.format(topic=topic, columns=columns, parse=parse, table=table, more=more)


def declare(folder: Path, topic: str, **declared: str) -> None:
    (folder / "people.py").write_text(declaration(topic, **declared))


@pytest.fixture
def call(people_topic: str, on_servers: Call) -> Call:
    return on_servers


@pytest.fixture
def fed(people_topic: str, call: Call, tmp_path: Path) -> str:
    """150 records, 75 in each partition, and the tables."""
    source = tmp_path / "people.jsonl"
    source.write_text("".join(f'{{"id": {number}}}\n' for number in range(150)))
    call.shown("feed", source, "--topic", people_topic)
    call.shown("migrate")
    return people_topic


@pytest.fixture
def planned(fed: str) -> Epoch:
    """An epoch that a run of Airflow left behind with one attempt begun."""
    declared = discovery.find("people")
    epoch = plan(adapters().ledger(declared), adapters().offsets(declared), declared, RUN).epoch
    assert epoch is not None
    begin(adapters().ledger(declared), "people", epoch.epoch_id, RUN, lease=LEASE)
    return epoch
