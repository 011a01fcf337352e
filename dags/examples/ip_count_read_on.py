"""What follows the IP count: its topic, read committed, into a table with each window's last count (Q7, X21)."""

from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COUNT = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "count": "bigint"}

pipeline = Pipeline(
    name="ip_count_read_on",
    # Transactions leave offsets without a record; the broker forgets that there were any when their producer is gone.
    source=KafkaSource(topics="ip_count_sink", gaps_expected=True),
    parse=Json(columns=COUNT),
    sinks=PostgresTable(
        table="ip_count_read_on", mode="upsert", key=("ip", "window_start"), columns=COUNT, before_images=100
    ),
    bad_records="quarantine",
    profile="ip_count",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)
