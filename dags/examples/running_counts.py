"""Word count from Kafka to Kafka: ``word:::count``, one running count per incoming word."""

from datetime import timedelta

from epochline import KafkaSource, KafkaTopic, Pipeline, StateTable, Text, epoch_dag

COUNTS = {"word": "text", "count": "bigint"}

pipeline = Pipeline(
    name="running_counts",
    source=KafkaSource(topics="flink_kafka", startup="latest"),
    parse=Text(),
    transform="pipelines.running_counts:count",
    sinks=KafkaTopic(
        topic="flink_kafka2",
        value=Text(),
        # A word's counts are in one partition, in their order.
        key="word",
        order_by="count",
        columns=COUNTS,
        aggregated=True,
        transaction_timeout=timedelta(seconds=5),
    ),
    state=StateTable(
        table="examples.running_counts", key="word", columns=COUNTS, keys="pipelines.running_counts:words"
    ),
    profile="word_count",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
