"""Pipelines whose records tell them what to do, one per test, so that no test sees another's epochs."""

from datetime import timedelta

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag


def scripted(name: str) -> Pipeline:
    return Pipeline(
        name=name,
        source=KafkaSource(topics=name),
        parse="scripted:parse",
        record={"value": "text"},
        sinks=[
            PostgresTable(table=name, columns={"value": "text"}),
            PostgresTable(table=f"{name}_again", columns={"value": "text"}),
        ],
        retries=1,
        retry_delay=timedelta(seconds=1),
        # Small batches: rows are copied while later batches of the same part are still being parsed.
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )


nothing = epoch_dag(scripted("nothing"))
killed_driver = epoch_dag(scripted("killed_driver"))
zombie = epoch_dag(scripted("zombie"))
killed_commit = epoch_dag(scripted("killed_commit"))
cleared = epoch_dag(scripted("cleared"))
recovered = epoch_dag(scripted("recovered"))
apart = epoch_dag(scripted("apart"))
