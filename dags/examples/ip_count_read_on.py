"""Consumer of the IP count's topic: writes each window's last count into a table.

The first pipeline's records wake this one. The interval of the profile stays beside it.
"""

from datetime import timedelta

from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COUNT = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "count": "bigint"}

pipeline = Pipeline(
    name="ip_count_read_on",
    # Transactions leave offsets without a record, but the broker forgets their producer after a while.
    source=KafkaSource(topics="ip_count_sink", gaps_expected=True),
    parse=Json(columns=COUNT),
    sinks=PostgresTable(
        table="examples.ip_count_read_on", mode="upsert", key=("ip", "window_start"), columns=COUNT, before_images=100
    ),
    bad_records="quarantine",
    profile="ip_count",
    wake_on_data=timedelta(seconds=5),
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
