"""Declares pipelines in files of a folder, as a user's DAG folder has them."""

from pathlib import Path

DAG = """from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag

dag = epoch_dag(
    Pipeline(name="{name}", source=KafkaSource(topics="t"), parse=Text(), sinks=[PostgresTable(table="{table}")])
)  # Airflow's safe mode skips files without its name
"""


def declare(folder: Path, name: str, table: str) -> None:
    """Write a file that declares a pipeline of one table."""
    (folder / f"{name}.py").write_text(DAG.format(name=name, table=table))
