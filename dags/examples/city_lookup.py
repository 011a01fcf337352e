"""Asynchronous look-ups: ids from Kafka, each with its city, into city_of_id (E9)."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="city_lookup",
    source=KafkaSource(topics="city_lookup"),
    # include/epochline_examples/city_lookup.sql makes the table; executors find its database by a service file.
    parse="pipelines.city_lookup:parse",
    record={"id": "text", "city": "text"},
    sinks=PostgresTable(table="city_of_id", columns={"id": "text", "city": "text"}),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)
