"""Change data capture: a copy of the table ``orders`` of another database, kept by Debezium's change events.

The connector needs ``decimal.handling.mode=string``. Its topic must not be compacted (Debezium does not compact it):
compaction may keep a tombstone without its delete event, and a tombstone has no position. If the log of the source
starts over (MySQL's ``RESET``, another server), positions no longer give the order: start with an empty table.
A large value that an update does not touch is not in PostgreSQL's log; its column keeps the value that it has.
"""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

pipeline = Pipeline(
    name="cdc_orders",
    source=KafkaSource(topics="shop.public.orders"),
    parse="pipelines.cdc_orders:parse",
    record={
        "id": "bigint", "customer": "text", "amount": "numeric(12,2)", "status": "text", "placed_at": "timestamptz",
        "source_file": "bigint", "source_position": "bigint",
    },
    sinks=PostgresTable(
        table="examples.orders",
        mode="upsert",
        key="id",
        # The change's position in the source's log: correct for any partition of a record and any number of repeats.
        # MySQL's positions start over in each binlog file, whose number is source_file; for PostgreSQL it is 0.
        order_by=("source_file", "source_position"),
        # What an update leaves as it is and PostgreSQL does not log, the connector cannot send.
        keep_unavailable=True,
        columns={
            "id": "bigint", "customer": "text", "amount": "numeric(12,2)", "status": "text", "placed_at": "timestamptz",
        },
    ),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
