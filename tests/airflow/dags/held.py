"""Pipelines whose tasks stand still at a failpoint until their test lets them go on: one for each step of an epoch."""

from datetime import timedelta
from functools import partial
from typing import Any

from epochline import FixedDelay, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Settings, Text, epoch_dag
from failing import failing

COLUMNS = {"value": "text"}


def arm_task(name: str, _: Any) -> None:
    """Arm what the pipeline's file says, before its task begins."""
    failing(name)


for step in ("plan_epoch", "pre_commit", "commit_epoch", "publish", "abort_epoch", "next"):
    name = f"held_{step}"
    tables = [PostgresTable(table=table, columns=COLUMNS) for table in (name, f"{name}_again")]
    dag: Any = epoch_dag(
        Pipeline(
            name=name, source=KafkaSource(topics=name), parse="scripted:parse", record=COLUMNS,
            sinks=[*tables, KafkaTopic(topic=f"{name}_out", value=Text())],
            settings=Settings(restart=FixedDelay(attempts=2, delay=timedelta(seconds=1)), parallelism=4),
        )
    )  # fmt: skip
    globals()[name] = dag
    for one in () if dag is None else dag.tasks:
        one._pre_execute_hook = partial(arm_task, name)

crowded = epoch_dag(
    Pipeline(
        name="crowded", source=KafkaSource(topics="crowded"), parse="scripted:parse", record=COLUMNS,
        sinks=[PostgresTable(table=table, columns=COLUMNS) for table in ("crowded", "crowded_again")],
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=4),
        schedule=timedelta(days=1),
    )
)  # fmt: skip
if crowded is not None:
    # A user may do so, although one run at a time is all that helps.
    crowded.max_active_runs = 5
