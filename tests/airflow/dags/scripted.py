"""Pipelines whose records tell them what to do, one per test, so that no test sees another's epochs."""

from datetime import timedelta
from typing import Any

from epochline import FixedDelay, KafkaSource, NoRestart, Pipeline, PostgresTable, Settings, epoch_dag


def scripted(name: str, **changes: Any) -> Pipeline:
    columns = {"value": "text"}
    fields: dict[str, Any] = {
        "source": KafkaSource(topics=name), "parse": "scripted:parse", "record": columns,
        "sinks": [PostgresTable(table=table, columns=columns) for table in (name, f"{name}_again")],
        # Of few records, too, some parts of an epoch are to be committed while others wait.
        "settings": Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=4),
        # Small batches: rows are copied while later batches of the same part are still being parsed.
        "spark_conf": {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    }  # fmt: skip
    return Pipeline(name=name, **{**fields, **changes})


BY_HAND = (
    "apart", "cancelled", "cleared", "compiled", "half_cleared", "killed_client", "killed_commit", "marked",
    "marked_run", "nothing", "overtaken", "rescheduled", "shared_server",
)  # fmt: skip
globals().update({name: epoch_dag(scripted(name)) for name in BY_HAND})
# Their drivers are started by spark-submit; every other job runs on the stack's Spark server.
BY_SUBMIT = ("killed_driver", "zombie")
globals().update({name: epoch_dag(scripted(name, spark_connection="spark_submit")) for name in BY_SUBMIT})
scheduled = epoch_dag(scripted("scheduled", schedule=timedelta(seconds=10)))
alternating = epoch_dag(scripted("alternating", schedule=timedelta(seconds=10)))
# Four weeks, so that no run of the schedule's own comes in between.
backfilled = epoch_dag(scripted("backfilled", schedule=timedelta(weeks=4)))
requeued = epoch_dag(scripted("requeued", bad_records="quarantine"))
extended = epoch_dag(scripted("extended", source=KafkaSource(topics="extended", startup="latest", records_per_epoch=5)))
# Data alone starts them.
WOKEN = ("woken", "woken_beside", "woken_late", "woken_failed")
without_retries = Settings(restart=NoRestart())
globals().update(
    {name: epoch_dag(scripted(name, wake_on_data=timedelta(seconds=5), settings=without_retries)) for name in WOKEN}
)
