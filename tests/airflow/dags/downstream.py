"""Pipelines that publish and announce, one per test; a file in the stack's home makes the tasks of one fail."""

from epochline import KafkaSource, KafkaTopic, NoRestart, Pipeline, PostgresTable, Settings, Text, epoch_dag
from failing import failing


def pipeline(name: str, *sinks: KafkaTopic) -> Pipeline:
    return Pipeline(
        name=name, source=KafkaSource(topics=name), parse=Text(), settings=Settings(restart=NoRestart()),
        sinks=[PostgresTable(table=name, columns={"value": "text"}), *sinks],
    )  # fmt: skip


failing("published")
failing("announced")
published = epoch_dag(pipeline("published", KafkaTopic(topic="published_out", value=Text())))
announced = epoch_dag(pipeline("announced"))
