"""Restart demo: numbers into examples.t_restart, five per epoch; after a crash it continues at the head."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="restart_demo",
    source=KafkaSource(topics="restart_demo", records_per_epoch=5),
    parse="pipelines.restart_demo:parse",
    record={"number": "bigint"},
    sinks=PostgresTable(table="examples.t_restart", columns={"number": "bigint"}),
    profile="restart_demo",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
