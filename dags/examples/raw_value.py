"""The raw-value program: numbers from Kafka into t_test (include/epochline_examples/README.md)."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag
from epochline_examples.raw_value import TOPIC

pipeline = Pipeline(
    name="raw_value",
    source=KafkaSource(topics=TOPIC),
    parse="pipelines.raw_value:parse",
    record={"value": "varchar(255)"},
    # include/epochline_examples/raw_value.sql makes the table: id and insert_time have defaults.
    sinks=PostgresTable(table="t_test", lineage=False),
    profile="kafka_to_db",
)

dag = epoch_dag(pipeline)
