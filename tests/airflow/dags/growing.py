"""A pipeline that reads a table of the stack's own database, by the class's own connection."""

from epochline import CustomSource, Json, Pipeline, PostgresTable, epoch_dag

columns = {"id": "bigint", "said": "text"}
growing = epoch_dag(
    Pipeline(
        name="growing", parse=Json(columns=columns), sinks=[PostgresTable(table="growing", columns=columns)],
        source=CustomSource(
            source="epochline.sources.growing_table:GrowingTable", connection="epochline_postgres", label="events",
            options={"table": "growing_events", "key": "id"}, positions="sparse",
        ),
    )
)  # fmt: skip
