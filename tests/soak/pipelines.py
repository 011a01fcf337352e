"""The pipelines of a soak: some whose tasks are plain processes, one under Airflow and Spark."""

from __future__ import annotations

from datetime import timedelta

from epochline import KafkaSource, Pipeline, PostgresTable, Text

PLAIN = ("soak_one", "soak_two")
SCHEDULED = "soak_airflow"
PARTITIONS = 3


def declared(name: str, schedule: timedelta | None = None) -> Pipeline:
    """Two tables, so that a snapshot can catch one without the other."""
    return Pipeline(
        name=name,
        # Under Airflow an epoch takes half a minute whatever its size, and takes all there is.
        source=KafkaSource(topics=name, records_per_epoch=1_000_000 if name == SCHEDULED else 400),
        parse=Text(),
        sinks=[
            PostgresTable(table=name, columns={"value": "text"}),
            PostgresTable(table=f"{name}_again", columns={"value": "text"}),
        ],
        schedule=schedule,
    )
