"""Epochline: exactly-once epochs from Kafka to PostgreSQL, run by Airflow and Spark.

What a pipeline's author imports is here; nothing here imports Airflow, Spark or Kafka.
"""

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
