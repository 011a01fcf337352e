"""A Kafka topic as a sink: one Kafka transaction sends an epoch's outbox together with a marker.

The marker goes to the control topic. The stable transactional id fences the previous publisher, which also ends its
open transaction. After that the last marker, read as ``read_committed``, is the newest epoch in the topic.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

from epochline.declare.topic import CONTROL_TOPIC, Outbox
from epochline.errors import OutboxTooLargeError, SinkAheadError, SinkError, SinkUnavailableError
from epochline.kafka.markers import Marker, last_marker
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.preflight import check_records, check_topic, make_control_topic, refuse_loop
from epochline.kafka.sending import END_KEY, TransactionalSender, send_plainly
from epochline.postgres.ledger.receipts import committed_as, last_shown, rows_of, shown_rate
from epochline.postgres.queries.statements import Connection
from epochline.protocol.quantities import counted, duration, number
from epochline.protocol.sink import Committable, PartWriter, ShownEpoch, Sink, SinkAttempt, WrittenPart

log = logging.getLogger(__name__)

ASSUMED_RATE = 10_000.0
"""Assumed rows per second of a topic before its first measured epoch."""


class TopicSink(Sink):
    """Publishes a pipeline's outbox to its topic, after the commit that wrote the outbox like any table.

    ``settings`` looks up the settings of the brokers (`epochline.config.kafka.broker_settings`). ``connect`` opens
    a transaction of its own in the database with outbox and receipts. ``sources`` looks up the settings of other
    connections by which the pipeline reads topics of the sink's names.
    """

    def __init__(
        self,
        pipeline: str,
        outbox: Outbox,
        settings: Callable[[], Mapping[str, str]],
        connect: Callable[[], AbstractContextManager[Connection]],
        sources: Mapping[str, Callable[[], Mapping[str, str]]] = MappingProxyType({}),
    ) -> None:
        self._pipeline = pipeline
        self._outbox = outbox
        self._topic = outbox.topic
        self._settings = settings
        self._connect = connect
        self._sources = sources
        self._sending_seconds: float | None = None

    def sending_seconds(self) -> float | None:
        """Seconds from the first record to the answer of Kafka's commit, which a transaction's time-out must cover."""
        return self._sending_seconds

    def preflight(self, pipeline: str) -> None:
        """Check topic, control topic and time-out, and that the pipeline does not read what it sends."""
        check_topic(self._settings(), self._topic)
        for connection, settings in self._sources.items():
            refuse_loop(self._settings(), self._topic, connection, settings())

    def prepare(self, pipeline: str) -> None:
        """Create the control topic if it is missing; nothing for a topic without transactions."""
        if self._topic.semantics == "exactly_once":
            make_control_topic(self._settings(), self._topic)

    def newest_shown(self, pipeline: str) -> ShownEpoch | None:
        """The epoch of the last marker; None if the topic has no markers."""
        if self._topic.semantics == "at_least_once":
            return None
        marker = self._marker(f"{self._topic.name} of {self._pipeline}")
        if marker is None:
            return None
        return ShownEpoch(
            generation=marker.generation, epoch_id=marker.epoch_id, token=marker.token, reached=marker.reached
        )

    def write(self, attempt: SinkAttempt, part: int) -> PartWriter:
        """Never called: rows are staged for the outbox, like those of any table."""
        raise NotImplementedError(f"{self._topic.name}: rows are staged for its outbox")

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        """Check that the topic takes every record, and that sending needs at most half the transaction's time-out.

        Raises:
            OutboxTooLargeError: sending would take longer; the message names the measured rate and the limit to lower.
            SinkError: a record is for a partition that the topic lacks, or is larger than the topic allows.
        """
        rows = sum(part.rows for part in parts)
        self._check_fits(parts)
        if self._topic.semantics == "at_least_once":
            return {}
        with self._connect() as connection:
            measured = shown_rate(connection, self._pipeline, self._topic.name)
        rate = measured or ASSUMED_RATE
        half = self._topic.transaction_timeout.total_seconds() / 2
        if rows > rate * half:
            raise OutboxTooLargeError(
                f"{attempt}: has {counted(rows, 'row')} for {self._topic.name}, which take {duration(rows / rate)} at"
                f" {number(rate)} rows/s ({'as measured' if measured else 'assumed, none was measured yet'}). This is"
                f" more than half of transaction_timeout ({duration(self._topic.transaction_timeout.total_seconds())})."
                " Nothing was sealed. Lower records_per_epoch of the source (or the run's record limit), or raise"
                " transaction_timeout as far as the broker allows.",
                f"resume {self._pipeline} --reason …",
            )
        return {}

    def _check_fits(self, parts: Sequence[WrittenPart]) -> None:
        by_topic: dict[str, list[Mapping[str, int]]] = defaultdict(list)
        for part in parts:
            for name, most in part.message.get("topics", {self._topic.topic: part.message}).items():
                by_topic[name].append(most)
        try:
            for name, sizes in by_topic.items():
                partitions = [most["partition"] for most in sizes if "partition" in most]
                largest = max(most.get("bytes", 0) for most in sizes)
                if partitions or largest:
                    check_records(self._settings(), self._topic, name, max(partitions, default=None), largest)
        except SinkUnavailableError as error:
            # An unreachable topic holds no epoch back; the publisher reports it later.
            log.warning("topic.unchecked sink=%s reason=%s", self._topic, error)

    def commit(self, committable: Committable) -> None:
        """Send the epoch in one Kafka transaction, unless its marker is there.

        An at-least-once topic gets the rows without a transaction, and without a look at markers.

        Raises:
            SinkUnavailableError: the brokers do not answer, another process publishes, or the outcome is unknown;
                a retry reads the marker.
            SinkAheadError: the last marker is of an epoch that the ledger does not know.
            SinkError: Kafka refuses, or the outbox does not hold the sealed rows.
        """
        attempt = committable.attempt
        if self._topic.semantics == "at_least_once":
            with self._connect() as connection, self._measuring():
                records = self._records(connection, committable)
                send_plainly(self._settings(), self._topic.topic, records, self._topic.other_topics)
            return
        with TransactionalSender(
            self._settings(), self._topic.transactional_id(self._pipeline), self._topic.transaction_timeout
        ) as sender:
            sender.fence()
            if self._is_there(committable, sender.mark_end()):
                log.info("topic.there pipeline=%s epoch=%d sink=%s", self._pipeline, attempt.epoch_id, self._topic.name)
                return
            marker = Marker(
                generation=attempt.generation, epoch_id=attempt.epoch_id, token=attempt.token,
                reached=committable.reached,
            )  # fmt: skip
            with self._connect() as connection, self._measuring():
                records = self._records(connection, committable)
                key = Marker.key(self._pipeline, self._topic.name)
                sender.send(self._topic.topic, records, key, marker.body(), self._topic.other_topics)

    def abort(self, attempt: SinkAttempt) -> None:
        """Do nothing: the outbox's staging is discarded with that of the tables."""

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._sending_seconds = time.monotonic() - begun

    def _records(self, connection: Connection, committable: Committable) -> Iterator[Outgoing]:
        """Yield the epoch's records; raises at the end if their number is not the sealed one."""
        sent = 0
        for key, value, headers, partition, topic in rows_of(connection, self._outbox, committable.attempt.epoch_id):
            sent += 1
            yield Outgoing(key=key, value=value, headers=headers, partition=partition, topic=topic)
        if sent != committable.rows:
            self._refuse_published(connection, committable)
            plain = self._topic.semantics == "at_least_once"
            raise SinkError(
                f"{self._topic.name}: the outbox {self._outbox.table} holds {sent} rows of epoch"
                f" {committable.attempt.epoch_id} of {self._pipeline}, but {committable.rows} were committed."
                f" {'Some of the rows may have been' if plain else 'Nothing was'} sent. The outbox was changed by hand;"
                " restore its rows from a backup."
            )

    def _refuse_published(self, connection: Connection, committable: Committable) -> None:
        """Raise if another process published the epoch since the marker was read, which empties the outbox."""
        attempt = committable.attempt
        shown = last_shown(connection, self._pipeline, self._topic.name)
        if shown is not None and shown >= attempt.epoch_id:
            raise SinkUnavailableError(
                f"{self._topic.name}: another process published epoch {attempt.epoch_id} of {self._pipeline} meanwhile."
                " Nothing was sent here; a retry finds the epoch published."
            )

    def _is_there(self, committable: Committable, end: int) -> bool:
        attempt = committable.attempt
        what = f"{self._topic.name}: epoch {attempt.epoch_id} of {self._pipeline}"
        marker = self._marker(what, end)
        if marker is None or marker.token == attempt.token:
            return marker is not None
        with self._connect() as connection:
            is_committed = committed_as(connection, self._pipeline, self._topic.name, marker.epoch_id, marker.token)
        if not is_committed:
            raise SinkAheadError(
                f"{what}: the topic holds epoch {marker.epoch_id} of generation {marker.generation} (token"
                f" {marker.token}), which the ledger does not know: the ledger went back in time, as from a backup."
                " Nothing was sent. Bring the newer ledger back. If it is lost, the command takes over what the topic"
                " shows and continues.",
                f"accept-ledger {self._pipeline} --reason …",
            )
        # Epochs are sent in order: if a later one is in the topic, this one was sent before it.
        return marker.epoch_id > attempt.epoch_id

    def _marker(self, what: str, end: int = -1) -> Marker | None:
        """Read the last marker. The ledger is read first, so that an epoch that it records as shown must be there."""
        with self._connect() as connection:
            shown = last_shown(connection, self._pipeline, self._topic.name)
        asked = self._settings(), self._pipeline, self._topic.name
        marker = last_marker(*asked, end=end)
        if _is_lost(marker, shown) and end < 0:
            # A leader that is cut off from the other brokers cannot show a log that reaches this record.
            marker = last_marker(*asked, end=self._write_end())
        _refuse_lost(what, marker, shown)
        return marker

    def _write_end(self) -> int:
        """The offset of a record that is written to the control topic without fencing a publisher; -1 if none may be.

        Raises `SinkUnavailableError` if not all replicas in sync take it.
        """
        try:
            return send_plainly(self._settings(), CONTROL_TOPIC, [Outgoing(key=END_KEY, value=None, partition=0)])
        except SinkUnavailableError:
            raise
        except SinkError:
            return -1


def _is_lost(marker: Marker | None, shown: int | None) -> bool:
    return shown is not None and (marker is None or marker.epoch_id < shown)


def _refuse_lost(what: str, marker: Marker | None, shown: int | None) -> None:
    if not _is_lost(marker, shown):
        return
    there = "no marker" if marker is None else f"the marker of epoch {marker.epoch_id}"
    raise SinkError(
        f"{what}: the ledger says that epoch {shown} is in the topic, but the control topic holds {there}. The"
        " control topic was deleted, or the connection leads to another cluster. Nothing was sent, because the content"
        " of the topic is unknown. Bring the control topic back, or publish to a new topic."
    )
