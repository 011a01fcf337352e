"""Pipelines that publish and announce, one per test; a file in the stack's home makes the tasks of one fail."""

import os
from pathlib import Path

from epochline import KafkaSource, KafkaTopic, NoRestart, Pipeline, PostgresTable, Settings, Text, epoch_dag
from epochline.failpoints import NAMED, RECORD, arm


def failing(name: str) -> None:
    """Arm what the file NAME-fails says, in the process of a task; other processes pass no failpoint."""
    home = Path(os.environ.get("EPOCHLINE_HOME", os.devnull))
    if (home / f"{name}-fails").exists():
        arm({NAMED: (home / f"{name}-fails").read_text(), RECORD: str(home / f"{name}-failed")})


def pipeline(name: str, *sinks: KafkaTopic) -> Pipeline:
    return Pipeline(
        name=name, source=KafkaSource(topics=name), parse=Text(), settings=Settings(restart=NoRestart()),
        sinks=[PostgresTable(table=name, columns={"value": "text"}), *sinks],
    )  # fmt: skip


failing("published")
failing("announced")
published = epoch_dag(pipeline("published", KafkaTopic(topic="published_out", value=Text())))
announced = epoch_dag(pipeline("announced"))
