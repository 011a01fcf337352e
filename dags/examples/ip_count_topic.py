"""IP count into a topic: visits per address and window of five seconds.

A late visit adds a second record of its window with the higher count. Consumers use the last record of a key.
"""

from datetime import timedelta

from epochline import EventTime, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Tumbling, Windowed, epoch_dag

VISIT = {"ip": "text", "visited_at": "timestamptz"}
COUNT = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "count": "bigint"}

pipeline = Pipeline(
    name="ip_count_topic",
    source=KafkaSource(topics="ip_count_source"),
    parse="pipelines.ip_count:parse",
    record=VISIT,
    windows=Windowed(
        time=EventTime(column="visited_at"),
        window=Tumbling(size=5),
        key="ip",
        aggregates={"count": "count(*)"},
        into="kafka:ip_count_sink",
        lateness=5,
        too_late="examples.ip_count_topic_late",
    ),
    sinks=[
        KafkaTopic(
            topic="ip_count_sink",
            value=Json(columns=COUNT),
            # A window's records are in one partition, in the order of their epochs.
            key=("ip", "window_start"),
            aggregated=True,
            transaction_timeout=timedelta(seconds=60),
        ),
        PostgresTable(table="examples.ip_count_topic_late", columns=VISIT),
    ],
    bad_records="quarantine",
    profile="ip_count",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
