"""Epochline: exactly-once epochs from Kafka to PostgreSQL, run by Airflow and Spark.

What a pipeline's author imports is here; nothing here imports Airflow, Spark or Kafka.
"""

from epochline.declarations import epoch_dag
from epochline.parsing import Bytes, Json, Regex, Text
from epochline.pipeline import KafkaSource, Pipeline
from epochline.restart import Endless, FailureRate, FixedDelay, NoRestart
from epochline.settings import Settings
from epochline.startup import FromGroup, FromOffsets, FromTimestamp
from epochline.state import StateTable
from epochline.table import PostgresTable

__all__ = [
    "Bytes",
    "Endless",
    "FailureRate",
    "FixedDelay",
    "FromGroup",
    "FromOffsets",
    "FromTimestamp",
    "Json",
    "KafkaSource",
    "NoRestart",
    "Pipeline",
    "PostgresTable",
    "Regex",
    "Settings",
    "StateTable",
    "Text",
    "epoch_dag",
]
