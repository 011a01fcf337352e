"""Checkpoint demo: "hello flink" once a second into examples.checkpoint_demo; each epoch leaves a file."""

from epochline import CustomSource, Pipeline, PostgresTable, Text, epoch_dag

pipeline = Pipeline(
    name="checkpoint_demo",
    source=CustomSource(
        source="pipelines.checkpoint_demo:Hello",
        options={"began": "2026-01-01T00:00:00Z", "seconds": 1},
        label="hello",
        startup="latest",
    ),
    parse=Text(),
    sinks=PostgresTable(table="examples.checkpoint_demo", columns={"value": "text"}),
    profile="checkpoint_demo",  # sets epoch_files
    writer_connection="epochline_writer",
)

dag = epoch_dag(pipeline)  # Airflow's safe mode skips files without its name
