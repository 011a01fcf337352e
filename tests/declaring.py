"""Declares pipelines: in files of a folder, as a user's DAG folder has them, and in a test that looks at a declaration."""

import json
from pathlib import Path
from typing import Any

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.protocol.changes import Effect, changes

DAG = """from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag

dag = epoch_dag(
    Pipeline(name="{name}", source=KafkaSource(topics="t"), parse=Text(), sinks=[PostgresTable(table="{table}")])
)  # Airflow's safe mode skips files without its name
"""


def declare(folder: Path, name: str, table: str) -> None:
    """Write a file that declares a pipeline of one table."""
    (folder / f"{name}.py").write_text(DAG.format(name=name, table=table))


def pipeline(*sinks: Any, **fields: Any) -> Pipeline:
    """Declare a pipeline: of the texts of a topic into a table, unless sinks or other fields are given."""
    given = {"sinks": sinks or PostgresTable(table="t")} | fields
    return Pipeline(**{"name": "p", "source": KafkaSource(topics="t"), "parse": Text()} | given)


def read_back(declared: Pipeline) -> Pipeline:
    """The declaration that the ledger gives back; it is equal, and has the same hash."""
    again = Pipeline.from_stored(declared.stored())
    assert again == declared
    assert again.declaration_hash == declared.declaration_hash
    assert again.stored() == declared.stored()
    return again


def effects(before: Pipeline, now: Pipeline) -> dict[str, Effect]:
    """What the next epoch makes of each field in which two declarations differ."""
    one, other = (json.loads(declared.stored()) for declared in (before, now))
    return {change.field: change.effect for change in changes(one, other)}
