"""Encode a topic's rows as outbox rows: key, value, headers and partition of Kafka records."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import ERROR, SOURCE_SCHEMA, call, marks, require_columns
from epochline.arrow.cast.reasons import any_true
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.texts import JsonWriter, as_text
from epochline.config.registry import registry
from epochline.declare.columns import DELETED, ColumnType
from epochline.declare.specs import AvroSpec, FormatSpec, JsonSpec, OutboxSpec, load_function
from epochline.errors import BatchContractError

EncodeValues = Callable[[pa.RecordBatch], tuple[pa.Array, dict[int, str]]]
"""Encodes rows: one value per row as text or bytes, and the reason for each row that cannot be encoded."""

_GIVEN = ("key", "value", "headers", ERROR)


class TopicEncoder:
    """Makes the rows of one topic's outbox."""

    def __init__(self, outbox: OutboxSpec) -> None:
        topic = outbox.topic
        self._topic = topic
        self._kinds = {name: column_type(text) for name, text in topic.record.items()}
        self._value: Serializer | EncodeValues = (
            Serializer(topic.value)
            if isinstance(topic.value, str)
            else _value_encoder(topic.value, topic.topic, self._kinds)
        )
        self._topics = pa.array(topic.topics, pa.string())
        self._key = JsonWriter({name: self._kinds[name] for name in topic.key})

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """One outbox row per row, and the reason for each row that cannot be encoded, which has only NULLs.

        A true ``_deleted`` makes a row a tombstone. Raises as `Registry.register` and `Serializer.serialize`.
        """
        problems: dict[int, str] = {}
        deleted = _deleted(rows)
        if isinstance(self._value, Serializer):
            columns, unfit = self._value.serialize(rows.select(list(self._kinds)), deleted)
            self._note(problems, unfit)
        else:
            columns = {"key": self._keys(rows, problems)}
            columns["value"] = self._values(self._value, rows, deleted, problems)
            columns["headers"] = self._headers(rows)
        columns["partition"] = self._partitions(rows, problems)
        if self._topic.topic_column is not None:
            columns["topic"] = self._chosen_topics(rows.column(self._topic.topic_column), problems)
        columns |= {f"order_{at}": rows.column(name) for at, name in enumerate(self._topic.order_by, 1)}
        if problems:
            bad = pa.array([row in problems for row in range(rows.num_rows)], pa.bool_())
            columns = {name: pc.if_else(bad, pa.scalar(None, column.type), column) for name, column in columns.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), problems

    def _note(self, problems: dict[int, str], reasons: Mapping[int, str]) -> None:
        for row, reason in reasons.items():
            problems.setdefault(row, f"{self._topic}: {reason}")

    def _chosen_topics(self, topics: pa.Array, problems: dict[int, str]) -> pa.Array:
        declared = ", ".join(self._topic.topics)
        strangers = pc.indices_nonzero(pc.invert(pc.is_in(topics, self._topics))).to_pylist()
        reason = f"{self._topic.topic_column} names none of the declared topics ({declared})"
        self._note(problems, dict.fromkeys(strangers, reason))
        return topics

    def _keys(self, rows: pa.RecordBatch, problems: dict[int, str]) -> pa.Array:
        if not self._topic.key:
            return pa.nulls(rows.num_rows, pa.binary())
        if len(self._topic.key) == 1:
            return self._bytes(rows, self._topic.key[0])
        texts, unfit = self._key.write(rows)
        self._note(problems, {row: f"key: {reason}" for row, reason in unfit.items()})
        return texts.cast(pa.binary())

    def _values(
        self, encode: EncodeValues, rows: pa.RecordBatch, deleted: pa.Array | None, problems: dict[int, str]
    ) -> pa.Array:
        if deleted is None:
            values, unfit = encode(rows)
            self._note(problems, unfit)
            return values.cast(pa.binary())
        # A deleted row has no value, so its other columns are not encoded.
        kept = pc.indices_nonzero(pc.invert(deleted))
        encoded, unfit = encode(rows.take(kept))
        places = kept.to_pylist()
        self._note(problems, {places[row]: reason for row, reason in unfit.items()})
        empty = pa.nulls(rows.num_rows, pa.binary())
        return pc.replace_with_mask(empty, pc.invert(deleted), encoded.cast(pa.binary()))

    def _headers(self, rows: pa.RecordBatch) -> pa.Array:
        if not self._topic.headers:
            return pa.nulls(rows.num_rows, pa.string())
        pieces: list[pa.Array | str] = []
        for at, (header, name) in enumerate(self._topic.headers.items()):
            # Headers often repeat, so each distinct value is encoded once.
            distinct = self._bytes(rows, name).dictionary_encode()
            values: list[Any] = distinct.dictionary.to_pylist()
            texts = pa.array([json.dumps(_base64(value)) for value in values], pa.string()).take(distinct.indices)
            pieces += [f"{', ' if at else '['}[{json.dumps(header)}, ", pc.fill_null(texts, "null"), "]"]
        return pc.binary_join_element_wise(*pieces, "]", "")

    def _partitions(self, rows: pa.RecordBatch, problems: dict[int, str]) -> pa.Array:
        if self._topic.partition is None:
            return pa.nulls(rows.num_rows, pa.int32())
        partitions = rows.column(self._topic.partition).cast(pa.int32())
        negative = pc.indices_nonzero(pc.fill_null(pc.less(partitions, 0), False)).to_pylist()
        self._note(problems, dict.fromkeys(negative, f"{self._topic.partition} is negative; partitions count from 0"))
        return partitions

    def _bytes(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        column, kind = rows.column(name), self._kinds[name]
        return column if kind.name == "bytea" else as_text(column, kind).cast(pa.binary())


def _deleted(rows: pa.RecordBatch) -> pa.Array | None:
    if DELETED not in rows.schema.names:
        return None
    deleted = pc.fill_null(rows.column(DELETED).cast(pa.bool_()), False)
    return deleted if any_true(deleted) else None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _value_encoder(value: FormatSpec, topic: str, kinds: Mapping[str, ColumnType]) -> EncodeValues:
    if isinstance(value, JsonSpec):
        return JsonWriter({name: kinds[name] for name in value.columns}).write
    if isinstance(value, AvroSpec):
        # Loads fastavro.
        from epochline.arrow.formats.avro_values import AvroWriter

        return AvroWriter(value, kinds, topic, registry(value.registry)).encode
    return lambda rows: (rows.column(value.column), {})


class Serializer:
    """Makes records with the user's function of a topic's ``value``, ``module:function``."""

    def __init__(self, reference: str) -> None:
        self._what = f"value {reference}"
        self._function = load_function(reference)

    def serialize(self, rows: pa.RecordBatch, deleted: pa.Array | None) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Key, value and headers (as JSON) of one record per row, and the reason for each row that cannot be sent.

        Raises `BatchContractError` or `ColumnMismatchError` if the function breaks its contract.
        """
        marked = pa.repeat(False, rows.num_rows) if deleted is None else deleted
        serialized = call(self._what, self._function, rows.append_column(DELETED, marked))
        require_columns(self._what, serialized, ["value"])
        strangers = [name for name in serialized.schema.names if name not in _GIVEN]
        if strangers:
            raise BatchContractError(
                f"{self._what} returned {', '.join(strangers)}; it may return key, value, headers and {ERROR}"
            )
        problems, _ = marks(self._what, serialized)
        values = self._column(serialized, "value")
        if deleted is not None:
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        headers = _header_texts(self._column(serialized, "headers"), problems)
        return {"key": self._column(serialized, "key"), "value": values, "headers": headers}, problems

    def _column(self, serialized: pa.RecordBatch, name: str) -> pa.Array:
        wanted = SOURCE_SCHEMA.field(name).type
        if name not in serialized.schema.names:
            return pa.nulls(serialized.num_rows, wanted)
        column = serialized.column(name)
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise BatchContractError(f"{self._what} returned {name} with type {column.type}, not {wanted}") from error


def _header_texts(headers: pa.Array, problems: dict[int, str]) -> pa.Array:
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.string())
    texts: list[str | None] = []
    for row, pairs in enumerate(headers.to_pylist()):
        if pairs and any(pair is None or pair["key"] is None for pair in pairs):
            problems.setdefault(row, "a header has no name")
            pairs = None
        texts.append(json.dumps([[pair["key"], _base64(pair["value"])] for pair in pairs]) if pairs else None)
    return pa.array(texts, pa.string())
