"""Streaming SQL: orders per user and window of five seconds, two seconds behind the newest order."""

from epochline import EventTime, KafkaSource, Pipeline, PostgresTable, WindowedQuery, epoch_dag
from pipelines.order_query import ORDER_TOTALS

pipeline = Pipeline(
    name="order_windows",
    source=KafkaSource(topics="order_windows"),
    parse="pipelines.orders:parse_json",
    record={"order_id": "text", "user_name": "text", "money": "bigint", "ordered_at": "timestamptz"},
    windows=WindowedQuery(
        query=ORDER_TOTALS,
        parameters={"size": "5 seconds"},
        time=EventTime(column="ordered_at", out_of_orderness=2),
        into="examples.window_totals",
    ),
    sinks=PostgresTable(
        table="examples.window_totals",
        mode="upsert",
        key=("user_name", "window_start"),
        columns={
            "user_name": "text", "window_start": "timestamptz", "window_end": "timestamptz", "total_money": "bigint",
            "max_money": "bigint", "min_money": "bigint", "total_count": "bigint",
        },
        aggregated=True,
        before_images=100,
    ),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
