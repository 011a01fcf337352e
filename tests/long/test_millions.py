"""Millions of records: needs a few minutes, and nothing that `make setup` does not install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from tests.databases import as_connection

RECORDS = 3_000_000
PARTITIONS = 4
DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{"id": "bigint", "customer": "text", "amount": "numeric(12,2)"}}
dag = epoch_dag(
    Pipeline(
        name="millions",
        source=KafkaSource(topics="{topic}", records_per_epoch=1_000_000),
        parse=Json(columns=COLUMNS),
        sinks=[PostgresTable(table="millions", columns=COLUMNS)],
    )
)
"""


def produce(bootstrap: str, topic: str) -> None:
    """Records whose id is their number."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "enable.idempotence": True})
    for number in range(RECORDS):
        value = f'{{"id": {number}, "customer": "customer {number % 1000}", "amount": "{number % 100000}.25"}}'
        while True:
            try:
                producer.produce(topic, value.encode(), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


@pytest.mark.long
def test_three_million_records_are_each_there_once(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """G3, INV-1: three epochs of a million, by one command; then the audit reads every record again from Kafka."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics(
            {topic_name: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True
        )
    produce(kafka_bootstrap, topic_name)
    (tmp_path / "millions.py").write_text(DECLARED.format(topic=topic_name))
    environment = {
        **os.environ,
        "EPOCHLINE_HOME": str(tmp_path / "no stack"),
        "EPOCHLINE_DAGS": str(tmp_path),
        "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(postgres_dsn),
        "AIRFLOW_CONN_EPOCHLINE_KAFKA": json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka_bootstrap}}
        ),
    }

    def epochline(*arguments: str) -> None:
        command = [sys.executable, "-c", "from epochline.cli import main; main()", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
        assert done.returncode == 0, done.stdout + done.stderr

    epochline("migrate")
    epochline("run", "millions", "--until-caught-up", "--master", "local[2]")
    epochline("audit", "millions")

    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT id), min(id), max(id), sum(amount) FROM millions")
        amounts = sum(number % 100_000 for number in range(RECORDS)) + RECORDS / 4
        assert cursor.fetchone() == (RECORDS, RECORDS, 0, RECORDS - 1, amounts)
        cursor.execute("SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED'")
        assert cursor.fetchone() == (3,)
