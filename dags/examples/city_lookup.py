"""Look-ups in Redis: ids from Kafka, each as ``id>>>name`` with its city, into examples.city_of_id."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="city_lookup",
    source=KafkaSource(topics="city_lookup"),
    # Executors find Redis by REDIS_URL, or by a file in the stack's home (include/epochline_examples/README.md).
    parse="pipelines.city_lookup:parse",
    record={"id": "text", "line": "text"},
    sinks=PostgresTable(table="examples.city_of_id", columns={"id": "text", "line": "text"}),
    # A look-up that takes more than a second makes a bad record.
    bad_records="quarantine",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
