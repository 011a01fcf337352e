"""Pipelines whose tasks run on different machines: with an executor of Airflow's that has queues, by their queues."""

from datetime import timedelta

from epochline import Files, FixedDelay, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag

COLUMNS = {"value": "text"}
# Each machine has a folder of its own under this name.
FILES = Files(path="/tmp/epochline-files-apart", columns=COLUMNS)

for name in ("apart", "delivered_twice", "machine_killed", "machine_cut_off", "scheduler_killed", "files_apart"):
    tables = [PostgresTable(table=table, columns=COLUMNS) for table in (name, f"{name}_again")]
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics=name), parse="scripted:parse", record=COLUMNS,
        sinks=[*tables, FILES] if name == "files_apart" else tables,
        settings=Settings(restart=FixedDelay(attempts=1, delay=timedelta(seconds=1)), parallelism=4),
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )  # fmt: skip
    dag = globals()[name] = epoch_dag(pipeline)
    if dag is not None:
        dag.get_task("pre_commit").queue = "staging"
