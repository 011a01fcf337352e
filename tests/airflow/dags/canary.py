"""Pipelines whose secrets are looked for everywhere while they run. A driver has Spark's UI and event log switched on."""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from epochline import FixedDelay, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag

LOGS = Path(os.environ.get("EPOCHLINE_HOME", tempfile.gettempdir())) / "logs"
SHOWING = {
    "spark.ui.enabled": "true", "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.dir": LOGS.as_uri(),
}  # fmt: skip
COLUMNS = {"value": "text"}

canary = epoch_dag(
    Pipeline(
        name="canary", source=KafkaSource(topics="canary"), parse="scripted:parse", record=COLUMNS,
        sinks=[PostgresTable(table="canary", columns=COLUMNS)], writer_connection="epochline_writer",
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1))),
        spark_connection="spark_submit", spark_conf=SHOWING,
    )
)  # fmt: skip


def expiring(name: str, spark: str, **conf: str) -> Pipeline:
    """Its test makes the connections, whose passwords a command gives."""
    return Pipeline(
        name=name, source=KafkaSource(topics=name), parse="scripted:parse", record=COLUMNS,
        sinks=[PostgresTable(table=table, columns=COLUMNS) for table in (name, f"{name}_again")],
        postgres_connection="expiring_owner", writer_connection="expiring_writer", spark_connection=spark,
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=4), spark_conf=conf,
    )  # fmt: skip


expiring_by_submit = epoch_dag(expiring("expiring_by_submit", "spark_submit", **SHOWING))
expiring_by_connect = epoch_dag(expiring("expiring_by_connect", "spark_default"))
