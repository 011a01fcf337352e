"""Encode a topic's rows as outbox rows: key, value, headers and partition of Kafka records."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.checks import any_true
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.json_objects import JsonWriter
from epochline.arrow.formats.postgres_text import as_text
from epochline.arrow.formats.serializer import Serializer
from epochline.config.registry import registry
from epochline.declare.columns import DELETED, ColumnType
from epochline.declare.specs import AvroSpec, JsonSpec, OutboxSpec, TopicSpec


class ValueEncoder(Protocol):
    """Encodes the values of one format."""

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One binary value per row (NULL is a tombstone), and the reason for each row that cannot be encoded."""


class TopicEncoder:
    """Makes the rows of one topic's outbox.

    Args:
        outbox: of the topic.
    """

    def __init__(self, outbox: OutboxSpec) -> None:
        topic = outbox.topic
        self._topic = topic
        self._kinds = {name: column_type(text) for name, text in topic.record.items()}
        self._value = _value_encoder(topic, self._kinds)
        self._topics = pa.array(topic.topics, pa.string())
        self._key = JsonWriter({name: self._kinds[name] for name in topic.key})

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """One outbox row per row, and the reason for each row that cannot be encoded. Such a row has only NULLs.

        Args:
            rows: the columns of ``topic.record``, cast to their types, and optionally ``_deleted``. A true ``_deleted``
                makes a row a tombstone: its value is NULL.

        Raises:
            SourceUnavailableError: the registry of an Avro schema does not answer. A retry may help.
            SinkError: the registry refuses the schema.
            BatchContractError: a function that makes the records broke its contract.
        """
        problems: dict[int, str] = {}
        columns = (
            self._serialized(rows, self._value, problems)
            if isinstance(self._value, Serializer)
            else {
                "key": self._keys(rows, problems),
                "value": self._values(rows, self._value, problems),
                "headers": self._headers(rows),
            }
        )
        columns["partition"] = self._partitions(rows, problems)
        if self._topic.topic_column is not None:
            columns["topic"] = self._chosen_topics(rows.column(self._topic.topic_column), problems)
        columns |= {f"order_{at}": rows.column(name) for at, name in enumerate(self._topic.order_by, 1)}
        if problems:
            bad = pa.array([row in problems for row in range(rows.num_rows)], pa.bool_())
            columns = {name: pc.if_else(bad, pa.scalar(None, column.type), column) for name, column in columns.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), problems

    def _serialized(
        self, rows: pa.RecordBatch, serializer: Serializer, problems: dict[int, str]
    ) -> dict[str, pa.Array]:
        made = serializer.serialize(rows.select(list(self._kinds)), _deleted(rows))
        for row, reason in made.problems.items():
            problems.setdefault(row, f"{self._topic}: {reason}")
        return {"key": made.keys, "value": made.values, "headers": made.headers}

    def _chosen_topics(self, topics: pa.Array, problems: dict[int, str]) -> pa.Array:
        declared = ", ".join(self._topic.topics)
        for row in pc.indices_nonzero(pc.invert(pc.is_in(topics, self._topics))).to_pylist():
            reason = f"{self._topic}: {self._topic.topic_column} names none of the declared topics ({declared})"
            problems.setdefault(row, reason)
        return topics

    def _keys(self, rows: pa.RecordBatch, problems: dict[int, str]) -> pa.Array:
        if not self._topic.key:
            return pa.nulls(rows.num_rows, pa.binary())
        if len(self._topic.key) == 1:
            return self._bytes(rows, self._topic.key[0])
        texts, found = self._key.write(rows)
        for row, reason in found.items():
            problems.setdefault(row, f"{self._topic}: key: {reason}")
        return texts.cast(pa.binary())

    def _values(self, rows: pa.RecordBatch, value: ValueEncoder, problems: dict[int, str]) -> pa.Array:
        deleted = _deleted(rows)
        if deleted is None:
            values, found = value.encode(rows)
        else:
            # A deleted row has no value, so its other columns are not encoded.
            kept = pc.indices_nonzero(pc.invert(deleted))
            encoded, found = value.encode(rows.take(kept))
            values = pc.replace_with_mask(pa.nulls(rows.num_rows, pa.binary()), pc.invert(deleted), encoded)
            places = kept.to_pylist()
            found = {places[row]: reason for row, reason in found.items()}
        for row, reason in found.items():
            problems.setdefault(row, f"{self._topic}: {reason}")
        return values

    def _headers(self, rows: pa.RecordBatch) -> pa.Array:
        if not self._topic.headers:
            return pa.nulls(rows.num_rows, pa.string())
        pieces: list[pa.Array | str] = []
        for at, (header, name) in enumerate(self._topic.headers.items()):
            # Headers often repeat, so each distinct value is encoded once.
            distinct = self._bytes(rows, name).dictionary_encode()
            values: list[Any] = distinct.dictionary.to_pylist()
            encoded = [f'"{base64.b64encode(value).decode()}"' for value in values]
            texts = pa.array(encoded, pa.string()).take(distinct.indices)
            pieces += [f"{', ' if at else '['}[{json.dumps(header)}, ", pc.fill_null(texts, "null"), "]"]
        return pc.binary_join_element_wise(*pieces, "]", "")

    def _partitions(self, rows: pa.RecordBatch, problems: dict[int, str]) -> pa.Array:
        if self._topic.partition is None:
            return pa.nulls(rows.num_rows, pa.int32())
        partitions = rows.column(self._topic.partition).cast(pa.int32())
        for row in pc.indices_nonzero(pc.fill_null(pc.less(partitions, 0), False)).to_pylist():
            problems.setdefault(row, f"{self._topic}: {self._topic.partition} is negative; partitions count from 0")
        return partitions

    def _bytes(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        """A column as a key or a header: bytes unchanged, everything else as text."""
        column, kind = rows.column(name), self._kinds[name]
        return column if kind.name == "bytea" else as_text(column, kind).cast(pa.binary())


def _deleted(rows: pa.RecordBatch) -> pa.Array | None:
    if DELETED not in rows.schema.names:
        return None
    deleted = pc.fill_null(rows.column(DELETED).cast(pa.bool_()), False)
    return deleted if any_true(deleted) else None


def _value_encoder(topic: TopicSpec, kinds: Mapping[str, ColumnType]) -> ValueEncoder | Serializer:
    if isinstance(topic.value, str):
        return Serializer(topic.value)
    if isinstance(topic.value, JsonSpec):
        return _JsonValues(topic.value, kinds)
    if isinstance(topic.value, AvroSpec):
        # Loads fastavro.
        from epochline.arrow.formats.avro_writer import AvroWriter

        return AvroWriter(topic.value, kinds, topic.topic, registry(topic.value.registry))
    return _ColumnValues(topic.value.column)


class _ColumnValues:
    """Values of `Bytes` and `Text`: one column, as bytes."""

    def __init__(self, column: str) -> None:
        self._column = column

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        return rows.column(self._column).cast(pa.binary()), {}


class _JsonValues:
    def __init__(self, value: JsonSpec, kinds: Mapping[str, ColumnType]) -> None:
        self._writer = JsonWriter({name: kinds[name] for name in value.columns})

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        texts, problems = self._writer.write(rows)
        return texts.cast(pa.binary()), problems
