"""Raw values: numbers from Kafka into examples.t_test (include/epochline_examples/README.md)."""

from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag
from epochline_examples.raw_value import TOPIC

pipeline = Pipeline(
    name="raw_value",
    source=KafkaSource(topics=TOPIC),
    parse="pipelines.raw_value:parse",
    record={"value": "varchar(255)"},
    # include/epochline_examples/raw_value.sql creates the table; id and insert_time have defaults there.
    sinks=PostgresTable(table="examples.t_test", lineage=False),
    profile="kafka_to_db",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
