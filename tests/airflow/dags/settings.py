"""Pipelines with settings of their own, one per test."""

from datetime import timedelta

from epochline import Endless, FixedDelay, KafkaSource, NoRestart, Pipeline, PostgresTable, Settings, epoch_dag


def with_settings(name: str, settings: Settings, **changes: str) -> Pipeline:
    return Pipeline(
        name=name,
        source=KafkaSource(topics=name),
        parse="scripted:parse",
        record={"value": "text"},
        sinks=[PostgresTable(table=name, columns={"value": "text"})],
        settings=settings,
        **changes,
    )


# Spark knows no such master: each attempt fails as soon as it is submitted.
restarted = epoch_dag(
    with_settings(
        "restarted",
        Settings(restart=FixedDelay(attempts=2, delay=timedelta(seconds=3)), tolerable_failures=0),
        spark_connection="spark_nowhere",
    )
)
unrestarted = epoch_dag(with_settings("unrestarted", Settings(restart=NoRestart()), spark_connection="spark_nowhere"))
endless = epoch_dag(
    with_settings("endless", Settings(restart=Endless(delay=timedelta(0))), postgres_connection="postgres_nowhere")
)
timed_out = epoch_dag(
    with_settings("timed_out", Settings(timeout=timedelta(seconds=25), restart=FixedDelay(attempts=3)))
)
