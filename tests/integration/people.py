"""A pipeline `people` on a real ledger and a real Kafka, and the commands that a test calls on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from epochline import cli
from epochline.cli.connections import ledger_of, offsets_of
from epochline.config import discovery
from epochline.coordinator import LEASE, begin, plan
from epochline.protocol.epoch import Epoch, Run
from tests.databases import as_connection

Call = Callable[..., tuple[int, str, str]]

DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="people",
    source=KafkaSource(topics="{topic}", records_per_epoch=100),
    parse=Json(columns={columns}),
    sinks=PostgresTable(table="people", columns={columns}),
)
dag = epoch_dag(pipeline)
"""
RUN = Run(dag_id="people", run_id="manual__1", host="somewhere")


@pytest.fixture
def people_topic(postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path, monkeypatch) -> str:
    """A declared pipeline, its database and its topic of two partitions; the topic's name."""
    from kafka import KafkaAdminClient

    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", as_connection(postgres_dsn))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka_bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps(kafka))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    declare(tmp_path, topic_name)
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics({topic_name: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    return topic_name


def declare(folder: Path, topic: str, **columns: str) -> None:
    text = DECLARED.format(topic=topic, columns=columns or {"id": "bigint"})
    (folder / "people.py").write_text(text)


@pytest.fixture
def call(people_topic: str, capsys, monkeypatch) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["epochline", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def fed(people_topic: str, call: Call, tmp_path: Path) -> str:
    """150 records, 75 in each partition, and the tables."""
    source = tmp_path / "people.jsonl"
    source.write_text("".join(f'{{"id": {number}}}\n' for number in range(150)))
    assert call("feed", source, "--topic", people_topic)[0] == 0
    assert call("migrate")[0] == 0
    return people_topic


@pytest.fixture
def planned(fed: str) -> Epoch:
    """An epoch that a run of Airflow left behind with one attempt begun."""
    declared = discovery.find("people")
    epoch = plan(ledger_of(declared), offsets_of(declared), declared, RUN).epoch
    assert epoch is not None
    begin(ledger_of(declared), "people", epoch.epoch_id, RUN, lease=LEASE)
    return epoch


def query(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with closing(psycopg2.connect(dsn)) as session, session, session.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
