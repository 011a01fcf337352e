"""Reads one committed range again: what the source still has of it, its counts, and the rows that it should give."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from epochline.arrow.cast.batches import SOURCE_SCHEMA, quarantine_batch, record_batch, stored_record
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.counts import digest, record_hashes
from epochline.audit.matching import PARSED
from epochline.audit.recorded import RecordedEpoch, RecordedRange, SetAside
from epochline.audit.several import Readings, SeveralRows
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError, RecordsGoneError
from epochline.protocol.balances import NOTHING_SEEN, PartitionCounts
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.staging import StagedTable

Flow = BatchRows | SeveralRows


class TakesRows(Protocol):
    """What takes rows of some sinks."""

    @property
    def sinks(self) -> frozenset[str]:
        """The sinks of which it takes rows."""

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows that a sink should have of an epoch."""


class Expected(TakesRows, Protocol):
    """What takes the rows that records should have given, as `epochline.audit.rows.ExpectedRows` does."""

    @property
    def set_aside(self) -> Callable[[int, pa.RecordBatch], None]:
        """Add records of an epoch that the quarantine should have."""

    @property
    def leave_out(self) -> Callable[[str, int, int, int], None]:
        """Exclude offsets of a partition from every comparison."""


class ExpectedOfAll:
    """Gives rows to whichever takes its sink: one of the ``others``, or else ``expected``, which gets all the rest."""

    def __init__(self, expected: Expected, *others: TakesRows) -> None:
        self._takers = (*others, expected)
        self.set_aside, self.leave_out = expected.set_aside, expected.leave_out

    @property
    def sinks(self) -> frozenset[str]:
        """The sinks whose rows are compared."""
        return frozenset().union(*(taker.sinks for taker in self._takers))

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows that the sink should have of an epoch."""
        next(taker for taker in self._takers if sink in taker.sinks).add(sink, epoch_id, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """Result of reading one range again. ``found`` is None if nothing of the range could be read."""

    found: PartitionCounts | None
    whole: bool
    """Whether the source has every offset of the range, so that counts and digest can be compared."""
    parsed: bool
    """Whether every record was parsed, so that passed, skipped and quarantined records are counted too."""
    gone: int
    """Number of records that compaction removed."""
    not_judged: tuple[str, ...]


class RangeReader:
    """Reads ranges of neighbouring epochs and puts the rows that they should have given into temporary tables.

    ``flow`` is None if the declaration's flow cannot be built any more. ``set_aside`` has the records that each epoch
    set aside: today's parse may take them, and a later epoch may have requeued them, but the quarantine has them.
    With `PARSED` among the expected sinks, it gets the parsed rows, and no other sink gets any. With ``keeps`` the
    parsed rows stay, until `take_parsed`, for a transform.
    """

    def __init__(
        self,
        session: Readings,
        flow: Flow | None,
        expected: Expected,
        set_aside: Mapping[int, SetAside],
        *,
        keeps: bool = False,
    ) -> None:
        self._session, self._keeps = session, keeps
        self._parsed: dict[str, list[pa.RecordBatch]] = {}
        self._set_aside = set_aside
        self._flow = flow
        self._expected = expected
        self.broken: dict[int, str] = {}
        """By epoch, the reason why its rows are unknown: its parse fails now."""

    def take_parsed(self) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """The parsed rows since the last call, by input."""
        parsed, self._parsed = self._parsed, {}
        return parsed

    def read(self, epoch_id: int, planned: RecordedRange, log: HeldLog | None) -> ReadAgain:
        """Read what the source still has of a range; missing offsets are left out of every comparison."""
        held, not_judged = _held(planned, log)
        if held is not None and planned.replaced_from is not None and planned.replaced_from < held.until:
            held, not_judged = _before_the_cut(held, planned.replaced_from, not_judged)
        counts: PartitionCounts | None = None
        if held is not None:
            try:
                counts = self._records(epoch_id, planned, held)
            except RecordsGoneError as error:
                held = None
                not_judged.append(f"not retained: offsets were deleted while the audit read ({error})")
        for gap in _gaps(planned.range, held):
            self._expected.leave_out(planned.topic, planned.partition, gap.start, gap.until)
        whole, gone = held == planned.range, 0
        if counts is not None and whole and log is not None and log.compacted:
            gone = max(planned.counts.received - counts.received, 0)
        if gone:
            not_judged.append(f"{gone} records have been compacted away: rows without a record are not judged")
        parsed = self._flow is not None and epoch_id not in self.broken
        return ReadAgain(found=counts, whole=whole and not gone, parsed=parsed, gone=gone, not_judged=tuple(not_judged))

    def _records(self, epoch_id: int, planned: RecordedRange, held: OffsetRange) -> PartitionCounts:
        seen = NOTHING_SEEN
        for columns in self._session.read(planned.topic, planned.partition, held):
            batch = record_batch(planned.topic, planned.partition, columns)
            seen += self._expect(epoch_id, batch) or _only_counted(batch)
        return seen

    def claims(self, epoch: RecordedEpoch, rows: Sequence[Any]) -> None:
        """Take the rows that claimed records should have given; records that were bad again stay in the quarantine."""
        records = [
            stored_record(row.topic, row.partition, row.offset, row.record_timestamp, row.key, row.value, row.headers)
            for row in rows
        ]
        self._expect(epoch.epoch_id, pa.RecordBatch.from_pylist(records, schema=SOURCE_SCHEMA), claimed=True)

    def _expect(self, epoch_id: int, batch: pa.RecordBatch, *, claimed: bool = False) -> PartitionCounts | None:
        """Add the rows of a batch to the expected rows; return its counts, or None if its parse fails."""
        if self._flow is None or epoch_id in self.broken:
            return None
        aside = NOTHING_SEEN
        if not claimed and self._set_aside[epoch_id]:
            batch, aside = self._without_set_aside(epoch_id, batch)
            if not batch.num_rows:
                return aside
        try:
            by_input: Mapping[str, pa.RecordBatch] = {}
            rows: Mapping[str, pa.RecordBatch] = {}
            if isinstance(self._flow, SeveralRows):
                by_input, quarantine, counts = self._flow.parse_only(batch)
            elif self._flow.transformed or PARSED in self._expected.sinks:
                parsed, quarantine, counts = self._flow.parse_only(batch)
                by_input, rows = {"": parsed}, {PARSED: parsed}
            else:
                processed = self._flow.process(batch)
                rows, quarantine, counts = processed.rows, processed.quarantine, processed.counts
        except Exception as error:  # a pipeline's own function may raise anything
            self.broken[epoch_id] = f"today's parse fails: {type(error).__name__}"
            return None
        if self._keeps:
            for name, parsed in by_input.items():
                self._parsed.setdefault(name, []).append(parsed)
        for sink in self._expected.sinks & set(rows):
            self._expected.add(sink, epoch_id, rows[sink])
        if not claimed:
            self._expected.set_aside(epoch_id, quarantine)
        return sum(counts.values(), aside)

    def _without_set_aside(self, epoch_id: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, PartitionCounts]:
        """The records that the epoch did not set aside, and the counts of the others, which are in the quarantine."""
        places = zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        bad = [row for row, place in enumerate(places) if place in self._set_aside[epoch_id]]
        self._expected.set_aside(epoch_id, quarantine_batch(batch, dict.fromkeys(bad, "set aside")))
        counts = replace(_only_counted(batch.take(pa.array(bad, pa.int64()))), quarantined=len(bad))
        return batch.filter(pa.array(~np.isin(np.arange(batch.num_rows), bad))), counts


def flow_of(declared: Pipeline, tables: Sequence[StagedTable]) -> tuple[Flow | None, str | None]:
    """Build the flow that an epoch's records went through; or return the reason why it cannot be built."""
    # A record that is bad now is a difference to report; the policy `fail` must not end the audit.
    lenient = declared.model_copy(update={"bad_records": "quarantine"})
    try:
        flows = {name: BatchRows(spec, tables) for name, spec in lenient.specs.items()}
        return flows.get("") or SeveralRows(flows), None
    except EpochlineError as error:
        return None, str(error)


def miscounted(planned: RecordedRange, seen: PartitionCounts, *, parsed: bool) -> Iterator[tuple[str, str]]:
    """How the counts and the digest of a whole range differ from the ledger's: kind, and what."""
    ledger = planned.counts
    counted = {"records read": "received"}
    if parsed:
        counted |= {name: name for name in ("passed", "skipped", "quarantined")}
    counts = [(what, getattr(ledger, name), getattr(seen, name)) for what, name in counted.items()]
    wrong = [f"{what} {was} in the ledger, {now} now" for what, was, now in counts if was != now]
    if wrong:
        yield "count", f"{planned.range}: {'; '.join(wrong)}"
    if ledger.digest != seen.digest:
        yield "digest", f"{planned.range}: source digest {ledger.digest} in the ledger, {seen.digest} now"


def _held(planned: RecordedRange, log: HeldLog | None) -> tuple[OffsetRange | None, list[str]]:
    """The part of a range that the source has now, and a note about the rest."""
    offsets, topic = planned.range, planned.topic
    if log is None:
        return None, [f"not retained: offsets {offsets}, the source has no {topic}-{planned.partition}"]
    if log.identity != planned.topic_id:
        return None, [f"not judged: {topic} was deleted and made again (its topic id was {planned.topic_id})"]
    start, until = max(offsets.start, log.start), min(offsets.until, log.end)
    if start >= until:
        return None, [f"not retained: offsets {offsets}"]
    held = OffsetRange(start=start, until=until)
    return held, [f"not retained: offsets {gap}" for gap in _gaps(offsets, held)]


def _before_the_cut(held: OffsetRange, cut: int, not_judged: list[str]) -> tuple[OffsetRange | None, list[str]]:
    """The part of a range whose records are still those that the epoch read, before the topic was adopted again."""
    other = OffsetRange(start=max(held.start, cut), until=held.until)
    notes = [*not_judged, f"not judged: offsets {other}: the log was truncated, and another generation adopted it"]
    return (OffsetRange(start=held.start, until=cut) if held.start < cut else None), notes


def _gaps(whole: OffsetRange, held: OffsetRange | None) -> list[OffsetRange]:
    if held is None:
        return [whole]
    bounds = [(whole.start, held.start), (held.until, whole.until)]
    return [OffsetRange(start=start, until=until) for start, until in bounds if start < until]


def _only_counted(batch: pa.RecordBatch) -> PartitionCounts:
    return replace(NOTHING_SEEN, received=batch.num_rows, digest=digest(record_hashes(batch)))
