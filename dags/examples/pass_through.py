"""Pass-through: bytes from one topic to another, once exactly once and once at least once.

``pass_through_at_least_once`` repeats records after a crash. The two pipelines differ only in ``semantics`` and
in the topic that they write.
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

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
dag_at_least_once = epoch_dag(at_least_once)
