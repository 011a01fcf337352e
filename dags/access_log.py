"""Web server log lines (NCSA Common or Combined) from Kafka into two tables, by Airflow, exactly once."""

from datetime import timedelta

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

RECORD = {
    "client": "text",
    "ts": "timestamptz",
    "method": "text",
    "path": "text",
    "protocol": "text",
    "status": "int",
    "bytes": "bigint",
    "referrer": "text",
    "user_agent": "text",
}

pipeline = Pipeline(
    name="access_log",
    source=KafkaSource(topics="access_log", startup="earliest", records_per_epoch=500_000),
    parse="pipelines.access_log:parse",
    record=RECORD,
    sinks=[
        PostgresTable(table="access_log", mode="append", columns=RECORD),
        PostgresTable(
            table="requests_per_client",
            mode="add",
            key="client",
            measures=("requests", "bytes"),
            columns={"client": "text", "requests": "bigint", "bytes": "bigint"},
            select="pipelines.access_log:per_client",
        ),
    ],
    bad_records="quarantine",
    # Spark's own login: it can fill staging tables, and neither read nor write a target.
    writer_connection="epochline_writer",
    schedule=timedelta(seconds=15),
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
