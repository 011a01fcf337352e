"""Word count: lines from Kafka, each word's count in t_wordcount, counted on from the state (E3)."""

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text, epoch_dag

COUNTS = {"word": "text", "count": "bigint"}

pipeline = Pipeline(
    name="word_count",
    source=KafkaSource(topics="word_count"),
    parse=Text(),
    transform="pipelines.word_count:count",
    sinks=PostgresTable(
        table="t_wordcount", mode="upsert", key="word", columns=COUNTS, aggregated=True, before_images=100
    ),
    state=StateTable(table="word_count", key="word", columns=COUNTS, keys="pipelines.word_count:words"),
    profile="word_count",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)
