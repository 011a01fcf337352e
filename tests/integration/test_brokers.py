"""Several brokers in one connection (K20)."""

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import PlanOutcome
from tests.integration.kafka_topics import Topic
from tests.integration.sinks_world import in_process


def test_a_list_of_two_brokers_of_which_the_first_is_down_still_plans_an_epoch(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str
) -> None:
    """K20."""
    Topic(kafka_bootstrap, topic_name).make().produce(0, 1)
    sink = PostgresTable(table="orders", columns={"value": "text"})
    pipeline = Pipeline(name="two_brokers", source=KafkaSource(topics=topic_name), parse=Text(), sinks=sink)
    it = in_process(postgres_dsn, f"127.0.0.1:1,{kafka_bootstrap}", pipeline)
    it.create()

    planned, _ = it.planned()

    assert planned.outcome is PlanOutcome.PLANNED
    assert [str(one) for one in planned.ranges] == [f"{topic_name}-0[0, 1)"]
