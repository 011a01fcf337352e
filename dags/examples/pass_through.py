"""Pass-through: bytes from one topic to another, exactly once and, beside it, at least once (E12, K16).

The Flink program has no checkpoint and the default semantics, so it repeats after a crash (X25). That is
``pass_through_at_least_once``; the two differ in one word, and in the topic that they write.
"""

from epochline import Bytes, KafkaSource, KafkaTopic, Pipeline, epoch_dag

RECORD = {"key": "bytea", "value": "bytea"}
INPUT, OUTPUT = "flink_kafka_poc_input", "flink_kafka_poc_output"

pipeline = Pipeline(
    name="pass_through",
    source=KafkaSource(topics=INPUT),
    parse="pipelines.pass_through:parse",
    record=RECORD,
    sinks=KafkaTopic(topic=OUTPUT, value=Bytes(), key="key", columns={"key": "bytea"}),
    writer_connection="epochline_writer",
)

at_least_once = Pipeline(
    name="pass_through_at_least_once",
    source=KafkaSource(topics=INPUT),
    parse="pipelines.pass_through:parse",
    record=RECORD,
    sinks=KafkaTopic(
        topic=f"{OUTPUT}_at_least_once", value=Bytes(), key="key", columns={"key": "bytea"},
        semantics="at_least_once",
    ),
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)
dag_at_least_once = epoch_dag(at_least_once)
