"""Savepoint demo: word counts in examples.savepoint_counts, which continue from a savepoint after a restore."""

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text, epoch_dag

COUNTS = {"word": "text", "count": "bigint"}

pipeline = Pipeline(
    name="savepoint_demo",
    source=KafkaSource(topics="savepoint_demo"),
    parse=Text(),
    transform="pipelines.word_count:count_in_demo",
    sinks=PostgresTable(
        table="examples.savepoint_counts", mode="upsert", key="word", columns=COUNTS, aggregated=True, before_images=100
    ),
    state=StateTable(table="examples.savepoint_state", key="word", columns=COUNTS, keys="pipelines.word_count:words"),
    profile="savepoint_demo",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
