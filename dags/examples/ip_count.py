"""IP count: visits per address and window of five seconds, from lines with a time and an address."""

from epochline import EventTime, KafkaSource, Pipeline, PostgresTable, Tumbling, Windowed, epoch_dag

VISIT = {"ip": "text", "visited_at": "timestamptz"}
COUNT = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "count": "bigint"}

pipeline = Pipeline(
    name="ip_count",
    source=KafkaSource(topics="ip_count_source"),
    parse="pipelines.ip_count:parse",
    record=VISIT,
    windows=Windowed(
        time=EventTime(column="visited_at"),
        window=Tumbling(size=5),
        key="ip",
        aggregates={"count": "count(*)"},
        into="examples.ip_count",
        lateness=5,
        too_late="examples.ip_count_late",
    ),
    sinks=[
        PostgresTable(
            table="examples.ip_count", mode="upsert", key=("ip", "window_start"), columns=COUNT, aggregated=True,
            before_images=100,
        ),
        PostgresTable(table="examples.ip_count_late", columns=VISIT),
    ],
    bad_records="quarantine",
    profile="ip_count",
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
