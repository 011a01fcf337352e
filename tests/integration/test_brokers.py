"""Several brokers in one connection (K20)."""

from __future__ import annotations

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import PlanOutcome, plan
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from tests.integration.kafka_topics import Topic


def test_a_list_of_two_brokers_of_which_the_first_is_down_still_plans_an_epoch(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str
) -> None:
    """K20."""
    Topic(kafka_bootstrap, topic_name).make().produce(0, 1)
    sink = PostgresTable(table="orders", columns={"value": "text"})
    pipeline = Pipeline(name="two_brokers", source=KafkaSource(topics=topic_name), parse=Text(), sinks=sink)
    ledger = PostgresLedger(postgres_dsn)
    with ledger.transaction() as tx:
        tx.targets.create(pipeline)

    source = KafkaOffsets({"bootstrap.servers": f"127.0.0.1:1,{kafka_bootstrap}"})
    planned = plan(ledger, source, pipeline, Run(dag_id="two_brokers", run_id="run-1", host="here"))

    assert planned.outcome is PlanOutcome.PLANNED
    assert [str(one) for one in planned.ranges] == [f"{topic_name}-0[0, 1)"]
