"""A consumer of another pipeline: writes one row per epoch of access_log, each epoch once (docs/downstream.md)."""

from datetime import UTC, datetime

from airflow.sdk import DAG, task

from epochline.airflow.assets import sink_asset
from epochline.airflow.connections import postgres_dsn
from epochline_examples.epoch_summaries import summarize

with DAG(
    dag_id="epoch_summaries",
    # An event may come twice, and one run may cover many events, so the cursor decides which epochs are new.
    schedule=sink_asset("access_log", "access_log"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["epochline"],
) as dag:

    @task(retries=2)
    def take_new_epochs() -> None:
        """Write a row for each new epoch."""
        epoch_ids = summarize(
            postgres_dsn("epochline_postgres"), consumer="epoch_summaries", pipeline="access_log", sink="access_log"
        )
        print(f"epochs taken: {', '.join(map(str, epoch_ids)) or 'none'}")

    take_new_epochs()
