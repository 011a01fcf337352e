"""Pipelines whose records tell them what to do, one per test, so that no test sees another's epochs."""

from datetime import timedelta
from typing import Any

from epochline import FixedDelay, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag


def scripted(
    name: str, schedule: timedelta | None = None, source: KafkaSource | None = None, **changes: Any
) -> Pipeline:
    return Pipeline(
        name=name,
        source=source or KafkaSource(topics=name),
        parse="scripted:parse",
        record={"value": "text"},
        sinks=[
            PostgresTable(table=name, columns={"value": "text"}),
            PostgresTable(table=f"{name}_again", columns={"value": "text"}),
        ],
        schedule=schedule,
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1))),
        # Small batches: rows are copied while later batches of the same part are still being parsed.
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
        **changes,
    )


nothing = epoch_dag(scripted("nothing"))
compiled = epoch_dag(scripted("compiled"))
killed_driver = epoch_dag(scripted("killed_driver"))
zombie = epoch_dag(scripted("zombie"))
killed_commit = epoch_dag(scripted("killed_commit"))
cleared = epoch_dag(scripted("cleared"))
recovered = epoch_dag(scripted("recovered"))
apart = epoch_dag(scripted("apart"))
scheduled = epoch_dag(scripted("scheduled", timedelta(seconds=10)))
external = epoch_dag(scripted("beside", timedelta(seconds=10)))
# Four weeks, so that no run of the schedule's own comes in between.
backfilled = epoch_dag(scripted("backfilled", timedelta(weeks=4)))
marked = epoch_dag(scripted("marked"))
marked_run = epoch_dag(scripted("marked_run"))
overtaken = epoch_dag(scripted("overtaken"))
half_cleared = epoch_dag(scripted("half_cleared"))
cancelled = epoch_dag(scripted("cancelled"))
rescheduled = epoch_dag(scripted("rescheduled"))
shared_server = epoch_dag(scripted("shared_server"))
requeued = epoch_dag(scripted("requeued", bad_records="quarantine"))
extended = epoch_dag(scripted("extended", source=KafkaSource(topics="extended", startup="latest", records_per_epoch=5)))
