"""Markers: records in a sink's Kafka transaction that name its epoch.

A marker is committed or aborted together with the records of the transaction. So it settles the outcome of a
transaction whose commit was not answered. A record without a value deletes a sink's markers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import SinkError, SinkUnavailableError
from epochline.kafka.client import Reports, new_consumer, partitions_of
from epochline.protocol.sink import StoredOffsets

_PATIENCE = timedelta(seconds=30)
_POLL_SECONDS = 1.0
_END = KafkaError._PARTITION_EOF


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The epoch and attempt whose rows a transaction holds."""

    generation: int
    epoch_id: int
    token: str
    reached: StoredOffsets | None = field(default=None, compare=False)
    """The source offsets after the epoch; None in markers of versions that did not write it."""

    @staticmethod
    def key(pipeline: str, sink: str) -> bytes:
        """The key of a sink's markers. The control topic is compacted: it keeps the last marker per key."""
        return json.dumps([pipeline, sink], ensure_ascii=False, separators=(",", ":")).encode()

    def body(self) -> bytes:
        """The marker as a record's value."""
        fields: dict[str, Any] = {"generation": self.generation, "epoch_id": self.epoch_id, "token": self.token}
        if self.reached is not None:
            fields["reached"] = self.reached
        return json.dumps(fields).encode()

    @classmethod
    def from_body(cls, body: bytes | None) -> Marker:
        """Parse the value of a record; raises `ValueError` if it is not a marker."""
        try:
            fields = json.loads(body or b"")
        except ValueError:
            fields = None
        match fields:
            case {"generation": int(generation), "epoch_id": int(epoch_id), "token": str(token)}:
                return cls(
                    generation=generation, epoch_id=epoch_id, token=token, reached=fields.get("reached")
                )  # fmt: skip
        raise ValueError(f"{body!r} is not a marker")


def last_marker(
    settings: Mapping[str, str], pipeline: str, sink: str, patience: timedelta = _PATIENCE, *, end: int = -1
) -> Marker | None:
    """The marker of the last transaction that a sink committed, or None if it has committed none.

    All sinks share the control topic. A committed marker stays invisible while it stands behind another sink's open
    transaction. So this function waits, up to ``patience``, until the last marker of the sink, visible or not, is
    committed or aborted. Call it after `epochline.kafka.sending.TransactionalSender.fence`: then no transaction of the
    sink itself is open.

    With the ``end`` that `epochline.kafka.sending.TransactionalSender.mark_end` gave, no marker before it is missed: a
    leader that is cut off from the other brokers is asked no more.

    Raises:
        SinkUnavailableError: Kafka does not answer, or another sink's transaction hides the last marker.
        SinkError: Kafka refuses, or the marker cannot be read.
    """
    key, deadline = Marker.key(pipeline, sink), time.monotonic() + patience.total_seconds()
    newest, marker = -1, None
    late = f"{CONTROL_TOPIC} could not be read to its end in time. Nothing was sent."
    with closing(_messages(settings, "read_uncommitted", deadline, late, end)) as messages:
        for message in messages:
            if message.error() is not None:
                break
            if message.key() == key:
                newest = message.offset() or 0
    if newest < 0:
        return None
    late = (
        f"the marker at offset {newest} of {CONTROL_TOPIC} stands behind the open transaction of another sink, so it"
        " cannot be read yet. Nothing was sent. That transaction ends when its sink publishes again, or at its"
        " time-out. Retry after that."
    )
    with closing(_messages(settings, "read_committed", deadline, late)) as messages:
        for message in messages:
            at_end = message.error() is not None
            if not at_end and message.key() == key:
                marker = _read(message)
            if (message.offset() or 0) >= (newest + 1 if at_end else newest):
                break
    return marker


def _messages(
    settings: Mapping[str, str], isolation: str, deadline: float, late: str, least: int = -1
) -> Generator[Message, None, None]:
    """Yields records, and at each end of the control topic a message whose error is ``_PARTITION_EOF``.

    An end up to ``least`` does not count: its leader is asked no more. Ends if the topic does not exist. Raises
    `SinkUnavailableError` with the message ``late`` at the deadline.
    """
    reports, doing = Reports(settings), f"reading {CONTROL_TOPIC}"
    with reports.explaining(doing), closing(new_consumer(settings, reports, isolation)) as consumer:
        # Before the assignment: if librdkafka does not know the partition's leader yet, it retries to find the
        # beginning only after half a second.
        if partitions_of(consumer, reports, CONTROL_TOPIC, deadline - time.monotonic()) is None:
            return
        consumer.assign([TopicPartition(CONTROL_TOPIC, 0, OFFSET_BEGINNING)])
        while time.monotonic() < deadline:
            message = consumer.poll(_POLL_SECONDS)
            reports.check()
            if message is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is not None and error.code() not in (_END, KafkaError.GROUP_AUTHORIZATION_FAILED):
                raise reports.explained(error, doing)
            if error is not None and error.code() == _END and offset <= least:
                # The leader does not know that it was replaced: another broker may be asked who leads.
                partitions_of(consumer, reports, CONTROL_TOPIC, deadline - time.monotonic())
                consumer.assign([TopicPartition(CONTROL_TOPIC, 0, offset)])
                continue
            # The consumer uses no group, so that a refusal of one does not matter.
            if error is None or error.code() == _END:
                yield message
    raise SinkUnavailableError(late)


def _read(message: Message) -> Marker | None:
    if message.value() is None:
        return None
    try:
        return Marker.from_body(message.value())
    except ValueError as error:
        raise SinkError(
            f"offset {message.offset()} of {CONTROL_TOPIC} should hold a marker, but cannot be read ({error}). Nothing"
            " was sent. Only epochline may write to this topic. Find out what else writes to it."
        ) from error
