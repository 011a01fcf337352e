"""A user's own DAG around the tasks of a pipeline: a task before and one after, its own defaults and callbacks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
from airflow.sdk import DAG, TaskGroup, task

from epochline import (
    FixedDelay,
    KafkaSource,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Settings,
    Text,
    epoch_schedule,
    epoch_tasks,
)
from epochline.airflow.connections import postgres_dsn

COLUMNS = {"value": "text"}
# Four weeks, so that no run of the schedule's own comes in between.
pipeline = Pipeline(
    name="guest",
    source=KafkaSource(topics="guest"),
    parse="scripted:parse",
    record=COLUMNS,
    sinks=[
        *(PostgresTable(table=table, columns=COLUMNS) for table in ("guest", "guest_again")),
        KafkaTopic(topic="guest_out", value=Text()),
    ],
    schedule=timedelta(weeks=4),
    settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=4),
)


def note_failure(context: Any) -> None:
    """The user's own callback."""
    context["ti"].xcom_push(key="failed", value=context["ti"].task_id)


with DAG(
    dag_id="guest",
    schedule=epoch_schedule(pipeline),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    # The tasks of an epoch keep their own retries and trigger rules.
    default_args={"on_failure_callback": note_failure, "retries": 0, "pool_slots": 2, "trigger_rule": "all_success"},
):

    @task
    def before() -> None:
        """Work of the user's own."""

    @task
    def after(ti: Any = None) -> str:
        """What the ledger says while this task runs: the state of the run's epoch, and whether the topic shows it."""
        with psycopg2.connect(postgres_dsn("epochline_postgres")) as session, session.cursor() as cursor:
            asked = (
                "SELECT e.state, r.state FROM epochline.epochs e JOIN epochline.receipts r USING (pipeline, epoch_id)"
                " WHERE pipeline = 'guest' AND epoch_id = %s AND sink = 'kafka:guest_out'"
            )
            cursor.execute(asked, [ti.xcom_pull(task_ids="plan_epoch")])
            [(epoch, receipt)] = cursor.fetchall()
            return f"{epoch}, {receipt}"

    with TaskGroup("ours"):
        epoch = epoch_tasks(pipeline)
    before() >> epoch >> after()
