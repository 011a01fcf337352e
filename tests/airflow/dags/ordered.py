"""Pipelines on which operators' actions are carried out by DAGs."""

from datetime import timedelta

from epochline import FixedDelay, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag


def ordered(name: str, **changes: object) -> Pipeline:
    return Pipeline(
        name=name,
        parse="scripted:parse",
        record={"value": "text"},
        sinks=[
            PostgresTable(table=name, columns={"value": "text"}),
            PostgresTable(table=f"{name}_again", columns={"value": "text"}),
        ],
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1))),
        **changes,
    )


requeued = epoch_dag(ordered("requeued", source=KafkaSource(topics="requeued"), bad_records="quarantine"))
extended = epoch_dag(
    ordered("extended", source=KafkaSource(topics="extended", startup="latest", records_per_epoch=5)),
)
