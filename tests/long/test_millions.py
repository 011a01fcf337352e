"""Millions of records: needs a few minutes, and nothing that `make setup` does not install."""

from pathlib import Path

import pytest

from tests.commands import in_processes
from tests.databases import query
from tests.integration.kafka_topics import make_topic, produce_orders

RECORDS = 3_000_000
PARTITIONS = 4
DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{"id": "bigint", "customer": "text", "amount": "numeric(12,2)"}}
dag = epoch_dag(Pipeline(
    name="three_millions", source=KafkaSource(topics="{topic}", records_per_epoch=1_000_000), parse=Json(columns=COLUMNS),
    sinks=[PostgresTable(table="millions", columns=COLUMNS)],
))
"""


@pytest.mark.long
def test_three_million_records_are_each_there_once(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """G3, INV-1: three epochs of a million, by one command; then the audit reads every record again from Kafka."""
    make_topic(kafka_bootstrap, topic_name, PARTITIONS)
    produce_orders(kafka_bootstrap, topic_name, range(RECORDS), PARTITIONS)
    (tmp_path / "millions.py").write_text(DECLARED.format(topic=topic_name))
    epochline = in_processes(tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap)

    epochline("migrate")
    epochline("run", "three_millions", "--until-caught-up", "--master", "local[2]")
    epochline("audit", "three_millions")

    found = query(postgres_dsn, "SELECT count(*), count(DISTINCT id), min(id), max(id), sum(amount) FROM millions")
    amounts = sum(number % 100_000 for number in range(RECORDS)) + RECORDS / 4
    assert found == [(RECORDS, RECORDS, 0, RECORDS - 1, amounts)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.epochs WHERE state = 'COMMITTED'") == [(3,)]
