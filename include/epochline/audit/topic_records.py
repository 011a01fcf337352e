"""The records of a topic of a pipeline, compared with those that its epochs should have sent there.

A record does not say which epoch sent it. So the topic is compared as a whole, after the last epoch: record by record,
with the transactions of the log telling whose records they are. What the topic need not hold any more is not judged.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochline.audit.digested_rows import DigestedRows, RowOfSink, digested
from epochline.audit.findings import Difference
from epochline.audit.session import AuditSession
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.topic import KafkaTopic, headers_of
from epochline.kafka.records import Columns, RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.quantities import counted

SAMPLE = 1000
"""The most differences of a sink that are named."""

_CONTENT = ("key", "value", "headers")

Logs = Mapping[tuple[str, int], HeldLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the ledger says of an epoch and a sink: its sealed rows, and whether the sink shows them."""

    rows: int
    shown: bool


@dataclass(slots=True)
class SinkFindings:
    """What was found in a sink; ``not_judged`` says why something could not be compared, if so."""

    sink: str
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)

    def differs(self, kind: str, said: str, epoch_id: int | None = None) -> None:
        """Add a difference without a place."""
        self.differences.append(Difference(epoch_id=epoch_id, where=self.sink, kind=kind, said=said))


class TopicRecords:
    """The records of one sink, in its topic or in those that it chooses from.

    Args:
        connection: the audit's session.
        topic: the sink, as an epoch declared it.
        number: tells the sinks of an audit apart.
        settings: of the brokers.
        logs: of the topics, as they were at the beginning.
        then: the receipts by epoch, before ``logs`` were looked at: what they call shown must be in the logs.
        now: the receipts after that: the logs hold records of no other epoch.
    """

    def __init__(
        self, connection: AuditSession, topic: KafkaTopic, number: int, settings: Mapping[str, str], logs: Logs,
        then: Mapping[int, Receipt], now: Mapping[int, Receipt],
    ) -> None:  # fmt: skip
        self._topic, self._settings, self._then, self._now = topic, settings, then, now
        self._logs, self._topics = dict(logs), {*topic.topics}
        self._name, self._in_transactions = topic.name, topic.semantics == "exactly_once"
        self._rows = DigestedRows(connection, _CONTENT, number)
        self._known: set[int] = set()
        self._given: dict[int, int] = {}

    def follow(self, topic: KafkaTopic) -> bool:
        """Go on with epochs that declared the sink so; return whether any topic is there. Raises `SourceError`."""
        self._topic = topic
        self._in_transactions = self._in_transactions and topic.semantics == "exactly_once"
        if further := {*topic.topics} - self._topics:
            self._topics |= further
            self._logs |= KafkaOffsets(self._settings).held(sorted(further))
        return bool(self._logs)

    def add(self, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add outbox rows of an epoch; none of an epoch that has no receipt, because an earlier one showed them."""
        if epoch_id not in self._now:
            return
        has = rows.schema.names
        topics = rows.column("topic").to_pylist() if "topic" in has else [None] * rows.num_rows
        key, value, headers = (rows.column(name).to_pylist() for name in _CONTENT)
        self._rows.expect(
            **_identified(
                [one or self._topic.topic for one in topics], key, value, [headers_of(one) for one in headers]
            ),
            epoch=[epoch_id] * rows.num_rows,
            **{name[1:]: rows.column(name).to_pylist() for name in STAGED_LINEAGE if name in has},
        )
        self._given[epoch_id] = self._given.get(epoch_id, 0) + rows.num_rows

    def leave_out(self, epochs: Sequence[int]) -> None:
        """Forget rows of epochs that may not be those that were sent."""
        self._rows.leave_out(epochs)
        for epoch_id in epochs:
            self._given.pop(epoch_id, None)

    def complete(self, epoch_id: int) -> str:
        """Note that every row of an epoch was added, if any could be; return what an epoch's result says."""
        receipt = self._now.get(epoch_id)
        if receipt is None:
            return "not compared: an earlier epoch showed these records"
        self._known.add(epoch_id)
        return "compared after the last epoch" if receipt.shown else "committed, not yet shown"

    def judge(self, found: SinkFindings, *, accepted: bool) -> None:
        """Read the topic, and tell what differs; ``accepted`` is whether it shows epochs of a lost ledger.

        Raises `SourceError` if Kafka does not answer, or refuses.
        """
        open_ended = self._read(found)
        for epoch in sorted(self._known):
            was, now = self._now[epoch].rows, self._given.get(epoch, 0)
            if was != now:
                said = f"{was} rows were sealed, {now} are given now"
                found.differs("count", said, epoch)
        unknown = {epoch: receipt for epoch, receipt in self._now.items() if epoch not in self._known}
        complete = not unknown and not accepted
        compacted = any(log.compacted for log in self._logs.values())
        held_after = [self._rows.held_after(*place) for place, log in self._logs.items() if log.start > 0]
        counts = self._rows.compare(
            due=[epoch for epoch in self._now if epoch not in self._then or not self._then[epoch].shown],
            away=max((epoch for epoch in held_after if epoch is not None), default=None),
            all_away=compacted or None in held_after, paired=complete, others=complete and self._in_transactions,
        )  # fmt: skip
        kinds = ["missing", "changed"]
        if open_ended and counts.get("missing"):
            kinds.remove("missing")
            behind = counted(counts["missing"], "record")
            found.not_judged.append(f"{behind} may stand behind a transaction that has not ended")
        if counts.get("away"):
            why = "is compacted" if compacted else "was cut off at its start"
            found.not_judged.append(f"{counted(counts['away'], 'record')} not retained: the topic {why}")
        if counts.get("due"):
            found.notes.append(f"{counted(counts['due'], 'record')} of epochs that are not yet shown")
        if complete and self._in_transactions:
            kinds += ["doubled", "extra"]
        if complete:
            self._say_what_is_more(counts, found)
        elif accepted:
            found.not_judged.append("it shows epochs of a lost ledger")
        else:
            surplus = sum(counts.get(kind, 0) for kind in ("doubled", "extra"))
            self._judge_number(surplus, unknown, found, whole=not (held_after or compacted or open_ended))
        more = sum(counts.get(kind, 0) for kind in kinds)
        found.differences += [self._difference(row) for row in self._rows.sample(kinds, SAMPLE)]
        if more > SAMPLE:
            found.differs("count", f"{more - SAMPLE} further records differ")

    def _read(self, found: SinkFindings) -> bool:
        """Read the logs up to the ends that they had; return whether a transaction had not ended there."""
        offsets, behind = KafkaOffsets(self._settings), False
        held = offsets.held(sorted(self._topics))
        for missing in sorted(self._topics - {topic for topic, _ in held}):
            found.differs("missing", f"Kafka has no topic {missing}")
        with RecordReader(self._settings).session() as session, self._uncommitted().session() as whole:
            for (topic, partition), log in sorted(held.items()):
                behind = behind or whole.log(topic, partition)[1] > log.end
                then = self._logs.get((topic, partition))
                start, until = log.start, log.start if then is None else min(then.end, log.end)
                if start < until:
                    wanted = OffsetRange(start=start, until=until)
                    written = offsets.transactions(topic, partition, wanted)
                    starts = [span.start for span, _ in written]
                    for columns in session.read(topic, partition, wanted):
                        producers: list[int | None] = []
                        for offset in columns["offset"]:
                            at = bisect_right(starts, offset) - 1
                            is_his = at >= 0 and offset < written[at][0].until
                            producers.append(written[at][1] if is_his else None)
                        self._find(topic, partition, columns, producers)
        self._logs = dict(held)
        return behind

    def _uncommitted(self) -> RecordReader:
        return RecordReader(self._settings, isolation="read_uncommitted")

    def _find(self, topic: str, partition: int, columns: Columns, producers: Sequence[int | None]) -> None:
        number, sent = len(columns["offset"]), [tuple(headers or ()) for headers in columns["headers"]]
        self._rows.find(
            **_identified([topic] * number, columns["key"], columns["value"], sent),
            topic=[topic] * number, partition=[partition] * number, offset=columns["offset"], producer=producers,
        )  # fmt: skip

    def _say_what_is_more(self, counts: Mapping[str, int], found: SinkFindings) -> None:
        if counts.get("other"):
            (first,) = self._rows.sample(["other"], 1)
            topic, partition, offset, _ = first.place or ("", 0, 0, 0)
            rows = counted(counts["other"], "record")
            found.notes.append(f"{rows} of another program, the first at {topic}-{partition} offset {offset}")
        for kind, what in (("doubled", "repeated"), ("extra", "of no row")):
            if counts.get(kind) and not self._in_transactions:
                found.notes.append(f"{counted(counts[kind], 'record')} {what}; the topic is at_least_once")

    def _judge_number(self, surplus: int, unknown: Mapping[int, Receipt], found: SinkFindings, *, whole: bool) -> None:
        """Compare numbers, where the rows of some epochs are not known."""
        left = {epoch: max(receipt.rows - self._given.get(epoch, 0), 0) for epoch, receipt in unknown.items()}
        most = sum(left.values())
        least = sum(rows for epoch, rows in left.items() if epoch in self._then and self._then[epoch].shown)
        epochs = counted(len(unknown), "epoch")
        if whole and surplus < least:
            said = f"{epochs} showed {least} rows whose values are not compared, {surplus} records are there"
            found.differs("count", said)
        elif surplus > most:
            found.not_judged.append(f"{counted(surplus - most, 'record')} more than epochs showed")
        if most:
            found.not_judged.append(f"values of {epochs} not compared")

    def _difference(self, row: RowOfSink) -> Difference:
        """A difference by its place in the topic, or if it is not there, by that of its own record."""
        said = [", ".join(row.columns)] if row.columns else []
        if row.place is not None and row.record is not None and row.record[0] is not None:
            topic, partition, offset, number = row.record
            said.append(f"record of {topic}-{partition} offset {offset}" + (f" row {number}" if number else ""))
        topic, partition, offset, number = row.place or row.record or (None, None, None, None)
        return Difference(
            epoch_id=row.epoch_id, where=self._name, kind=row.kind, topic=topic, partition=partition, offset=offset,
            row=number, said="; ".join(said) or None,
        )  # fmt: skip


def _identified(
    topics: Sequence[str], keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Any]
) -> dict[str, list[bytes]]:
    """The identity of each record, by its topic and its key, and its content."""
    content = digested(keys, values, headers)
    known = [key if key is not None else ("without a key", whole) for key, whole in zip(keys, content, strict=True)]
    return {"id": digested(topics, known), "content": content}
