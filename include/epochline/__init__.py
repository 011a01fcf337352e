"""Epochline: exactly-once epochs from Kafka to PostgreSQL, run by Airflow and Spark.

What a pipeline's author imports is here; nothing here imports Airflow, Spark or Kafka. Each name is imported when it is
first asked for: a Spark worker or a command that declares nothing does not pay for the declarations.

``INV-9`` is an invariant of ``docs/requirements.md``, ``ADR 0017`` is ``docs/adr/0017-….md``. The words are those of
``docs/glossary.md``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochline.airflow.dag_file import epoch_dag, epoch_schedule, epoch_tasks
    from epochline.declare.aggregation import Windowed
    from epochline.declare.avro import Avro
    from epochline.declare.bounds import Bounds, Measure
    from epochline.declare.event_time import EventTime, Session, Sliding, Tumbling
    from epochline.declare.external import CustomSink, Files
    from epochline.declare.inputs import Input, Sources
    from epochline.declare.parsers import Bytes, Json, Regex, Text
    from epochline.declare.pipeline import Pipeline
    from epochline.declare.settings import Endless, FailureRate, FixedDelay, NoRestart, Retention, Settings
    from epochline.declare.source import CustomSource, FromGroup, FromOffsets, FromTimestamp, KafkaSource
    from epochline.declare.state import StateTable
    from epochline.declare.table import PostgresTable
    from epochline.declare.topic import KafkaTopic
    from epochline.declare.windowed_query import WindowedQuery

__all__ = [
    "Avro",
    "Bounds",
    "Bytes",
    "CustomSink",
    "CustomSource",
    "Endless",
    "EventTime",
    "FailureRate",
    "Files",
    "FixedDelay",
    "FromGroup",
    "FromOffsets",
    "FromTimestamp",
    "Input",
    "Json",
    "KafkaSource",
    "KafkaTopic",
    "Measure",
    "NoRestart",
    "Pipeline",
    "PostgresTable",
    "Regex",
    "Retention",
    "Session",
    "Settings",
    "Sliding",
    "Sources",
    "StateTable",
    "Text",
    "Tumbling",
    "Windowed",
    "WindowedQuery",
    "epoch_dag",
    "epoch_schedule",
    "epoch_tasks",
]

_MODULES = {
    "airflow.dag_file": ("epoch_dag", "epoch_schedule", "epoch_tasks"),
    "declare.aggregation": ("Windowed",),
    "declare.bounds": ("Bounds", "Measure"),
    "declare.event_time": ("EventTime", "Session", "Sliding", "Tumbling"),
    "declare.external": ("Files", "CustomSink"),
    "declare.inputs": ("Input", "Sources"),
    "declare.avro": ("Avro",),
    "declare.parsers": ("Bytes", "Json", "Regex", "Text"),
    "declare.pipeline": ("Pipeline",),
    "declare.settings": ("Endless", "FailureRate", "FixedDelay", "NoRestart", "Retention", "Settings"),
    "declare.source": ("CustomSource", "FromGroup", "FromOffsets", "FromTimestamp", "KafkaSource"),
    "declare.state": ("StateTable",),
    "declare.table": ("PostgresTable",),
    "declare.topic": ("KafkaTopic",),
    "declare.windowed_query": ("WindowedQuery",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
