"""Batch SQL: each user's total, largest and smallest order of a day, by the text of a streaming query."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="order_totals",
    source=KafkaSource(topics="order_totals"),
    parse="pipelines.orders:parse_csv",
    record={"id": "bigint", "user_name": "text", "ordered_at": "timestamp", "money": "numeric(12,1)"},
    transform="pipelines.orders:totals",
    sinks=PostgresTable(
        table="examples.order_totals",
        mode="replace",
        columns={
            "user_name": "text", "total_money": "numeric(14,1)", "max_money": "numeric(12,1)",
            "min_money": "numeric(12,1)", "total_count": "bigint",
        },
        aggregated=True,
    ),
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
