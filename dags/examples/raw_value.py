"""The documents' raw-value program: numbers from Kafka into t_test every ten seconds (include/examples/README.md)."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag
from examples.raw_value import TOPIC

pipeline = Pipeline(
    name="raw_value",
    source=KafkaSource(topics=TOPIC),
    parse="pipelines.raw_value:parse",
    record={"value": "varchar(255)"},
    # The table is made by include/examples/raw_value.sql, exactly as in the documents: id and insert_time are its own.
    sinks=PostgresTable(table="t_test", lineage=False),
    profile="kafka_to_db",
)

dag = epoch_dag(pipeline)
