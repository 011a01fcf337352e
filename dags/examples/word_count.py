"""Word count: lines from Kafka, and each word's count so far in examples.t_wordcount, from keyed state."""

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text, epoch_dag

COUNTS = {"word": "text", "count": "bigint"}

pipeline = Pipeline(
    name="word_count",
    source=KafkaSource(topics="word_count"),
    parse=Text(),
    transform="pipelines.word_count:count",
    sinks=PostgresTable(
        table="examples.t_wordcount", mode="upsert", key="word", columns=COUNTS, aggregated=True, before_images=100
    ),
    state=StateTable(table="examples.word_count", key="word", columns=COUNTS, keys="pipelines.word_count:words"),
    profile="kafka_wordcount",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
