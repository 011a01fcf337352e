"""Declaration of Kafka topics as sinks."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from operator import not_
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from epochline.declare.avro import Avro
from epochline.declare.base import (
    DeclarationModel,
    Duration,
    Names,
    OrderedColumns,
    Reference,
    check_function,
    check_topic,
    refuse_names,
    repeated,
)
from epochline.declare.columns import LINEAGE, STAGED_PLACE, parse_type
from epochline.declare.names import OUTBOX, outbox_table
from epochline.declare.parsers import Json, ValueFormat
from epochline.declare.specs import OutboxSpec, TopicSpec
from epochline.declare.table import PostgresTable

CONTROL_TOPIC = "epochline.markers"
"""Compacted topic of one partition with the last marker of each pipeline and sink, written with its records."""


class Outbox(PostgresTable):
    """The table of a topic's unsent records, filled by the epoch's commit.

    Columns: ``key bytea, value bytea, headers text`` (JSON: a list of [name, base64 of the value or null]),
    ``partition integer`` (NULL: the partitioner chooses), ``topic text`` with ``topic_column``, ``order_1, …`` for each
    column of ``order_by``, the lineage, and ``_part integer, _seq bigint`` (`epochline.declare.columns.STAGED_PLACE`).
    """

    topic: KafkaTopic

    @property
    def spec(self) -> OutboxSpec:
        return self._as(OutboxSpec, topic=self.topic.spec)


class KafkaTopic(DeclarationModel):
    """A topic to which an epoch's rows are published, in one Kafka transaction per epoch.

    Args:
        topic: its name; the topic must exist.
        other_topics: further topics to which ``topic_column`` may send a record; they must exist.
        topic_column: text column with the topic of each record: ``topic``, or one of ``other_topics``.
        value: `Bytes`, `Text`, `Json` or `Avro`: the columns of a record's value, and their format. Or
            ``module:function``, a serializer of your own (docs/sinks.md).
        key: columns of the key: one is sent as its text (``bytea`` unchanged), several as a JSON object. Empty: no key.
        headers: by header, the column of its value.
        partition: column with the partition's number; by default the key decides, as with Kafka's own producer.
        columns: names and types of further columns, for key, headers, partition, topic or order; with a function as
            ``value``, of all columns that it receives.
        order_by: columns that order an epoch's records; by default the order in which they were read.
        select: ``module:function`` from parsed batch to this sink's batch (same rows, same order); by default columns
            are taken by name.
        aggregated: whether a ``transform`` makes rows that belong to no single record; they carry no lineage, in a
            table only ``_epoch``.
        semantics: ``at_least_once`` sends without a transaction: a crash repeats records of this topic (no INV-5).
        transaction_timeout: Kafka's ``transaction.timeout.ms``, at most what the broker allows. The seal refuses an
            epoch that would take more than half.
        max_unpublished_epochs: no epoch is planned while this many epochs wait to be shown.
        connection: id of the Airflow connection of the brokers.
    """

    topic: str
    other_topics: Names = Field(default=(), exclude_if=not_)
    topic_column: str | None = Field(default=None, exclude_if=not_)
    value: str | ValueFormat
    key: Names = ()
    headers: dict[str, str] = Field(default_factory=dict)
    partition: str | None = None
    columns: OrderedColumns = Field(default_factory=dict)
    order_by: Names = ()
    select: Reference | None = None
    aggregated: bool = False
    semantics: Literal["exactly_once", "at_least_once"] = "exactly_once"
    transaction_timeout: Duration = timedelta(minutes=15)
    max_unpublished_epochs: int = Field(default=100, ge=1)
    connection: str = "epochline_kafka"

    @field_validator("topic", "other_topics")
    @classmethod
    def _topics_can_be_written(cls, topics: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for topic in (topics,) if isinstance(topics, str) else topics:
            if check_topic(topic) == CONTROL_TOPIC:
                raise ValueError(f"{topic} holds the markers of every pipeline; publish to another topic")
        return topics

    @field_validator("value")
    @classmethod
    def _values_are_flat(cls, value: str | ValueFormat) -> str | ValueFormat:
        if isinstance(value, Json | Avro) and value.reads_only:
            fields = ", ".join(value.reads_only)
            raise ValueError(
                f"{fields}: for reading only; a column is written as a member of its own name; leave it out"
            )
        checked: str | ValueFormat = check_function(value)
        return checked

    @model_validator(mode="after")
    def _a_record_can_be_made(self) -> Self:
        if bool(self.other_topics) is not (self.topic_column is not None):
            raise ValueError("other_topics and topic_column: name both, or none of them")
        if repeated(self.topics):
            raise ValueError("other_topics: a topic is named twice; topic is one of the topics already")
        if isinstance(self.value, str):
            if not self.columns:
                raise ValueError(f"columns: name the columns and types that the function {self.value} receives")
            if self.key or self.headers:
                raise ValueError(f"key, headers: the function {self.value} makes them; take them out")
        return self

    @model_validator(mode="after")
    def _every_column_is_known(self) -> Self:
        for field, names in {
            "topic_column": (self.topic_column,) if self.topic_column else (),
            "key": self.key,
            "headers": tuple(self.headers.values()),
            "partition": (self.partition,) if self.partition else (),
            "order_by": self.order_by,
        }.items():
            missing = [name for name in names if name not in self.record]
            refuse_names(f"{field}:", missing, " is not among the columns; name it in columns")
        if self.partition and parse_type(self.record[self.partition]).name not in ("smallint", "integer"):
            raise ValueError(f"partition: {self.partition} is {self.record[self.partition]}; it must be an integer")
        if self.topic_column and parse_type(self.record[self.topic_column]).name not in ("text", "character varying"):
            raise ValueError(f"topic_column: {self.topic_column} is {self.record[self.topic_column]}; it must be text")
        if self.transaction_timeout < timedelta(seconds=1):
            raise ValueError("transaction_timeout: must be at least one second")
        return self

    @property
    def name(self) -> str:
        return f"kafka:{self.topic}"

    @property
    def record(self) -> dict[str, str]:
        """Columns and types that are read from the rows: the value's columns, then ``columns``."""
        return {**({} if isinstance(self.value, str) else self.value.record), **self.columns}

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that a record may go to."""
        return (self.topic, *self.other_topics)

    @property
    def sent_topics(self) -> tuple[str, ...]:
        """Every topic that an epoch is sent to, with that of its marker."""
        return (*self.topics, *((CONTROL_TOPIC,) if self.semantics == "exactly_once" else ()))

    @property
    def spec(self) -> TopicSpec:
        return self._as(TopicSpec, value=self.value if isinstance(self.value, str) else self.value.spec)

    def transactional_id(self, pipeline: str) -> str:
        """Kafka's ``transactional.id``, the same in every process, so that a new producer fences its predecessor."""
        # A colon, because names may hold dots: with a dot two sinks could share an id and fence each other.
        return f"epochline.{pipeline}:{self.topic}"

    def outbox(self, pipeline: str) -> Outbox:
        """Declaration of the topic's outbox."""
        columns = {"key": "bytea", "value": "bytea", "headers": "text", "partition": "integer"}
        columns |= {"topic": "text"} if self.topic_column else {}
        columns |= {f"order_{at}": self.record[name] for at, name in enumerate(self.order_by, 1)}
        table = f"{OUTBOX}.{outbox_table(pipeline, self.topic)}"
        return Outbox(table=table, columns=columns, aggregated=self.aggregated, topic=self)

    def __str__(self) -> str:
        return self.name


def sending_order(outbox: Outbox) -> tuple[str, ...]:
    """Columns that order the records of an epoch: as declared, then as read, then as staged."""
    declared = tuple(f"order_{at}" for at in range(1, len(outbox.topic.order_by) + 1))
    read = () if outbox.aggregated else tuple(name for name in LINEAGE if name != "_epoch")
    return declared + read + tuple(STAGED_PLACE)


def headers_of(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record, as its row in an outbox has them."""
    if not text:
        return ()
    return tuple((name, None if value is None else base64.b64decode(value)) for name, value in json.loads(text))
