"""Pipelines whose records tell them what to do, one per test, so that no test sees another's epochs."""

from datetime import timedelta
from typing import Any

from epochline import (
    Bounds,
    Endless,
    FixedDelay,
    KafkaSource,
    KafkaTopic,
    NoRestart,
    Pipeline,
    PostgresTable,
    Settings,
    Text,
    epoch_dag,
)


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
    "after_hanging", "cancelled", "cleared", "compiled", "elsewhere", "followed", "half_cleared", "killed_client", "killed_commit",
    "logged", "lost_together", "lost_worker", "marked", "marked_while_paused", "nothing", "overtaken", "rescheduled",
    "shared_server", "taken_over",
)  # fmt: skip
globals().update({name: epoch_dag(scripted(name)) for name in BY_HAND})
# Their drivers are started by spark-submit; every other job runs on the stack's Spark server.
BY_SUBMIT = ("killed_driver", "zombie")
globals().update({name: epoch_dag(scripted(name, spark_connection="spark_submit")) for name in BY_SUBMIT})
scheduled = epoch_dag(scripted("scheduled", schedule=timedelta(seconds=10)))
ticking = epoch_dag(scripted("ticking", schedule=timedelta(seconds=20)))
# Four weeks, so that no run of the schedule's own comes in between.
listed = epoch_dag(scripted("listed", schedule=timedelta(weeks=4)))
backfilled = epoch_dag(scripted("backfilled", schedule=timedelta(weeks=4)))
watched = epoch_dag(scripted("watched", bad_records="quarantine"))
CLICKED = ("clicked_by_grace", "clicked_by_ada", "viewed")
globals().update({name: epoch_dag(scripted(name, bad_records="quarantine")) for name in CLICKED})
figures = epoch_dag(scripted("figures", bad_records="quarantine"))
# Of each record two rows.
clicked_outside = epoch_dag(scripted("clicked_outside", bounds=Bounds(most_rows=4)))
clicked_rarely = epoch_dag(
    scripted("clicked_rarely", source=KafkaSource(topics="clicked_rarely", startup="latest", records_per_epoch=1))
)
clicked_out = [
    PostgresTable(table="clicked_late", columns={"value": "text"}),
    KafkaTopic(topic="clicked_out", value=Text()),
]
clicked_late = epoch_dag(scripted("clicked_late", sinks=clicked_out))
constrained = epoch_dag(scripted("constrained", settings=Settings(restart=Endless())))
raising = epoch_dag(
    scripted("raising", schedule=timedelta(seconds=5), settings=Settings(restart=FixedDelay(attempts=1, delay=1)))
)
# Nobody declared what restarts it.
by_default = Settings(parallelism=4)
raising_by_default = epoch_dag(scripted("raising_by_default", schedule=timedelta(seconds=5), settings=by_default))
WITHOUT_KAFKA = ("plans_without_kafka", "reads_without_kafka", "commits_without_kafka")
patient = Settings(restart=FixedDelay(attempts=3, delay=10), parallelism=4)
globals().update({name: epoch_dag(scripted(name, settings=patient)) for name in WITHOUT_KAFKA})
once = Settings(restart=NoRestart(), parallelism=4)
waited_for = epoch_dag(scripted("waited_for", schedule=timedelta(weeks=4), settings=once))
# Data alone starts them.
WOKEN = ("woken", "woken_beside", "woken_late")
globals().update({name: epoch_dag(scripted(name, wake_on_data=timedelta(seconds=5), settings=once)) for name in WOKEN})
