"""Comparison of sinks: a topic, a table of rows and a table of sums as three sinks of one epoch."""

from epochline import Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, epoch_dag

KEYS = {"key1": "text", "key2": "text", "key3": "text"}
SLOT = {"slot_time": "timestamptz", **KEYS}
INDICATE = {"indicate": "bigint"}

pipeline = Pipeline(
    name="sink_comparison",
    source=KafkaSource(topics="flink_input"),
    parse="pipelines.sink_comparison:parse",
    record={"uuid": "uuid", **SLOT, **INDICATE},
    sinks=[
        KafkaTopic(
            topic="flink_output",
            value=Json(columns={"uuid": "uuid", **KEYS, **INDICATE}),
            key="uuid",
        ),
        PostgresTable(table="examples.test_two_step", columns={**SLOT, **INDICATE}),
        PostgresTable(
            table="examples.test_two_step_compare",
            mode="add",
            columns={**SLOT, **INDICATE},
            key=tuple(SLOT),
            measures="indicate",
        ),
    ],
    bad_records="quarantine",
    profile="dual_sink",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
