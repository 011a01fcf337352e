"""The example's consumer, downstream of a pipeline that a test drives."""

from datetime import UTC, datetime

from airflow.sdk import DAG, task

from epochline.airflow.assets import sink_asset
from epochline.airflow.connections import postgres_dsn
from epochline_examples.epoch_summaries import summarize

with DAG(
    dag_id="announced_summaries",
    schedule=sink_asset("announced", "announced"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
) as dag:

    @task
    def take_new_epochs() -> None:
        summarize(
            postgres_dsn("epochline_postgres"), consumer="announced_summaries", pipeline="announced", sink="announced"
        )

    take_new_epochs()
