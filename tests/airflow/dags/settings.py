"""Pipelines with settings of their own, one per test."""

from datetime import timedelta

from epochline import Endless, FixedDelay, KafkaSource, NoRestart, Pipeline, PostgresTable, Settings, epoch_dag


def with_settings(name: str, settings: Settings, **changes: str) -> Pipeline:
    columns = {"value": "text"}
    return Pipeline(
        name=name, source=KafkaSource(topics=name), parse="scripted:parse", record=columns,
        sinks=[PostgresTable(table=name, columns=columns)], settings=settings, **changes,
    )  # fmt: skip


# Spark knows no such master: each attempt fails as soon as it is submitted.
twice = Settings(restart=FixedDelay(attempts=2, delay=timedelta(seconds=3)), tolerable_failures=0)
restarted = epoch_dag(with_settings("restarted", twice, spark_connection="spark_nowhere"))
unrestarted = epoch_dag(with_settings("unrestarted", Settings(restart=NoRestart()), spark_connection="spark_nowhere"))
endless = epoch_dag(
    with_settings("endless", Settings(restart=Endless(delay=timedelta(0))), postgres_connection="postgres_nowhere")
)
briefly = Settings(timeout=timedelta(seconds=25), restart=FixedDelay(attempts=3))
timed_out = epoch_dag(with_settings("timed_out", briefly))
