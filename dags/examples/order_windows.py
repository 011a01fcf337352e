"""Streaming SQL: orders per user and window of five seconds, two seconds behind the newest (E11)."""

from epochline import EventTime, KafkaSource, Pipeline, PostgresTable, Tumbling, Windowed, epoch_dag

pipeline = Pipeline(
    name="order_windows",
    source=KafkaSource(topics="order_windows"),
    parse="pipelines.orders:parse_json",
    record={"order_id": "text", "user_id": "bigint", "money": "bigint", "create_time": "timestamptz"},
    windows=Windowed(
        time=EventTime(column="create_time", out_of_orderness=2),
        window=Tumbling(size=5),
        key="user_id",
        aggregates={"orders": "count(*)", "max_money": "max(money)", "min_money": "min(money)"},
        into="order_windows",
    ),
    sinks=PostgresTable(
        table="order_windows",
        mode="upsert",
        key=("user_id", "window_start"),
        columns={
            "user_id": "bigint", "window_start": "timestamptz", "window_end": "timestamptz", "orders": "bigint",
            "max_money": "bigint", "min_money": "bigint",
        },
        aggregated=True,
        before_images=100,
    ),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)
