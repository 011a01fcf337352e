"""Epochline: exactly-once epochs from Kafka to PostgreSQL, run by Airflow and Spark.

What a pipeline's author imports is here; nothing here imports Airflow, Spark or Kafka. Each name is imported when it is
first asked for: a Spark worker or a command that declares nothing does not pay for the declarations.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochline.beside import Files, OwnSink
    from epochline.declarations import epoch_dag
    from epochline.event_time import EventTime
    from epochline.parsing import Avro, Bytes, Json, Regex, Text
    from epochline.pipeline import Pipeline
    from epochline.reading import KafkaSource
    from epochline.restart import Endless, FailureRate, FixedDelay, NoRestart
    from epochline.settings import Settings
    from epochline.startup import FromGroup, FromOffsets, FromTimestamp
    from epochline.state import StateTable
    from epochline.table import PostgresTable
    from epochline.topic import KafkaTopic
    from epochline.windowed import Windowed
    from epochline.windows import Session, Sliding, Tumbling

__all__ = [
    "Avro",
    "Bytes",
    "Endless",
    "EventTime",
    "FailureRate",
    "Files",
    "FixedDelay",
    "FromGroup",
    "FromOffsets",
    "FromTimestamp",
    "Json",
    "KafkaSource",
    "KafkaTopic",
    "NoRestart",
    "OwnSink",
    "Pipeline",
    "PostgresTable",
    "Regex",
    "Session",
    "Settings",
    "Sliding",
    "StateTable",
    "Text",
    "Tumbling",
    "Windowed",
    "epoch_dag",
]

_MODULES = {
    "beside": ("Files", "OwnSink"),
    "declarations": ("epoch_dag",),
    "event_time": ("EventTime",),
    "parsing": ("Avro", "Bytes", "Json", "Regex", "Text"),
    "pipeline": ("Pipeline",),
    "reading": ("KafkaSource",),
    "restart": ("Endless", "FailureRate", "FixedDelay", "NoRestart"),
    "settings": ("Settings",),
    "startup": ("FromGroup", "FromOffsets", "FromTimestamp"),
    "state": ("StateTable",),
    "table": ("PostgresTable",),
    "topic": ("KafkaTopic",),
    "windowed": ("Windowed",),
    "windows": ("Session", "Sliding", "Tumbling"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
