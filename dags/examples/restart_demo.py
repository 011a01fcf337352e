"""RestartDemo: numbers into t_restart, five in an epoch; where it goes on is in the ledger (E8)."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="restart_demo",
    source=KafkaSource(topics="restart_demo", records_per_epoch=5),
    parse="pipelines.restart_demo:parse",
    record={"number": "bigint"},
    sinks=PostgresTable(table="t_restart", columns={"number": "bigint"}),
    profile="restart_demo",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)
