"""Windows that an idle source closes, under a scheduler."""

from epochline import EventTime, KafkaSource, Pipeline, PostgresTable, Tumbling, Windowed, epoch_dag

_SEEN = {"value": "text", "window_start": "timestamptz", "window_end": "timestamptz", "times": "bigint"}
closing = epoch_dag(
    Pipeline(
        name="closing", source=KafkaSource(topics="closing"), parse="timed:parse",
        record={"value": "text", "at": "timestamptz"},
        windows=Windowed(
            time=EventTime(column="at", idle_after=1), window=Tumbling(size=2), key="value",
            aggregates={"times": "count(*)"}, into="closing",
        ),
        sinks=PostgresTable(
            table="closing", mode="upsert", key=("value", "window_start"), columns=_SEEN, aggregated=True
        ),
        bad_records="quarantine", writer_connection="epochline_writer",
    )
)  # fmt: skip
