"""A pipeline with bounds: an epoch of more than four rows waits for a person."""

from epochline import Bounds, KafkaSource, Measure, Pipeline, PostgresTable, epoch_dag

COLUMNS = {"value": "text"}

bounded = epoch_dag(
    Pipeline(
        name="bounded", source=KafkaSource(topics="bounded"), parse="scripted:parse", record=COLUMNS,
        sinks=[PostgresTable(table=table, columns=COLUMNS) for table in ("bounded", "bounded_again")],
        bounds=Bounds(
            most_quarantined=0.1,
            measures=[Measure(name="values", sql="SELECT count(*) FROM staged", table="bounded", most=4)],
        ),
    )
)  # fmt: skip
