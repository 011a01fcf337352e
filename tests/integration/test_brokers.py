"""Several brokers in one connection (K20)."""

from __future__ import annotations

from contextlib import closing

from kafka import KafkaAdminClient, KafkaProducer

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import PlanOutcome, plan
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run


def test_a_list_of_two_brokers_of_which_the_first_is_down_still_plans_an_epoch(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str
) -> None:
    """K20."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all")) as producer:
        producer.send(topic_name, b"x").get(30)
    sink = PostgresTable(table="orders", columns={"value": "text"})
    pipeline = Pipeline(name="two_brokers", source=KafkaSource(topics=topic_name), parse=Text(), sinks=sink)
    ledger = PostgresLedger(postgres_dsn)
    with ledger.transaction() as tx:
        tx.targets.create(pipeline)

    source = KafkaOffsets({"bootstrap.servers": f"127.0.0.1:1,{kafka_bootstrap}"})
    planned = plan(ledger, source, pipeline, Run(dag_id="two_brokers", run_id="run-1", host="here"))

    assert planned.outcome is PlanOutcome.PLANNED
    assert [str(one) for one in planned.ranges] == [f"{topic_name}-0[0, 1)"]
