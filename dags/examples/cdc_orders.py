"""Change data capture: the table ``orders`` of another database, kept as it is there, from Debezium's change events.

The connector needs ``decimal.handling.mode=string``. Its topic must not be compacted (Debezium makes it so): there a
delete may be gone and only its tombstone be left, which says nothing of when it happened. Where the log of the source
begins anew (MySQL's ``RESET``, another server), positions tell no order any more: begin with an empty table.
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
        table="orders",
        mode="upsert",
        key="id",
        # Where the change stands in the source's own log: right wherever a key's records are, and however often.
        # The file is the number of MySQL's binlog, whose positions begin anew with each; 0 for PostgreSQL.
        order_by=("source_file", "source_position"),
        columns={
            "id": "bigint", "customer": "text", "amount": "numeric(12,2)", "status": "text", "placed_at": "timestamptz",
        },
    ),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)  # fmt: skip

dag = epoch_dag(pipeline)
