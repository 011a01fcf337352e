"""Two sources in one epoch: orders with their customers' names, into examples.orders_with_customers."""

from epochline import Input, Json, KafkaSource, Pipeline, PostgresTable, Sources, StateTable, epoch_dag

pipeline = Pipeline(
    name="orders_with_customers",
    source=Sources(
        inputs={
            "orders": Input(
                source=KafkaSource(topics="joined_orders"),
                parse=Json(columns={"order_id": "text", "customer_id": "bigint", "amount": "numeric(12,2)"}),
            ),
            # A topic of another Kafka cluster: connection="…" names it.
            "customers": Input(
                source=KafkaSource(topics="joined_customers"),
                parse=Json(columns={"customer_id": "bigint", "name": "text"}),
            ),
        },
    ),
    transform="pipelines.orders_with_customers:join",
    sinks=PostgresTable(
        table="examples.orders_with_customers",
        columns={"order_id": "text", "customer_id": "bigint", "name": "text", "amount": "numeric(12,2)"},
        aggregated=True,
    ),
    # Without `keys`, the state of the customers of both inputs.
    state=StateTable(
        table="examples.customers",
        key="customer_id",
        columns={"customer_id": "bigint", "name": "text", "waiting": "text"},
    ),
    bad_records="quarantine",
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
