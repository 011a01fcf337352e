"""A pipeline whose secrets are looked for everywhere while it runs, with Spark's UI and event log switched on."""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from epochline import FixedDelay, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag

LOGS = Path(os.environ.get("EPOCHLINE_HOME", tempfile.gettempdir())) / "logs"

canary = epoch_dag(
    Pipeline(
        name="canary", source=KafkaSource(topics="canary"), parse="scripted:parse", record={"value": "text"},
        sinks=[PostgresTable(table="canary", columns={"value": "text"})], writer_connection="epochline_writer",
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1))),
        spark_connection="spark_submit",
        spark_conf={
            "spark.ui.enabled": "true", "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
            "spark.eventLog.dir": LOGS.as_uri(),
        },
    )
)  # fmt: skip
