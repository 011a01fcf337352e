"""What becomes of a backfill run's interval: what is read, is committed already, or is out of reach."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochline.errors import BeforeOriginError
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Interval
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.planning import PartOfInterval


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalReport:
    """Notes for the run, and the epochs that committed offsets of its interval before."""

    notes: tuple[str, ...]
    covered_by: tuple[int, ...]


def report_interval(
    tx: Transaction,
    name: str,
    row: PipelineRow,
    interval: Interval,
    parts: Sequence[PartOfInterval],
    ranges: Sequence[PlannedRange],
) -> IntervalReport:
    """Say what becomes of the interval, given the ranges that the run would read.

    Raises:
        BeforeOriginError: the whole interval lies before the origin. A retry does not help.
    """
    outside = [f"{part.tp}{part.before_origin}" for part in parts if part.before_origin is not None]
    covered = [(part.tp, part.committed) for part in parts if part.committed is not None]
    extend = f"extend-back {name} {interval.start.isoformat()} --reason …"
    if outside and not covered and not ranges:
        raise BeforeOriginError(
            f"{name}: the interval {interval} lies before the origin: {', '.join(outside)}. Nothing was planned, and"
            " another try gives the same. The command commits what lies before the origin.",
            extend,
        )
    notes = []
    if outside:
        notes.append(
            f"not covered, because before the origin: {', '.join(outside)}. `epochline {extend}` commits what lies"
            " before the origin."
        )
    read = {one.tp for one in ranges}
    early = [f"{part.tp}{part.early}" for part in parts if part.tp in read and part.early is not None]
    if early:
        notes.append(
            f"began before the interval {interval}, because a chain has no gap: {', '.join(early)}"
            " were not committed yet"
        )
    epochs: set[int] = set()
    for tp, offsets in covered:
        ids = tx.chain.epochs_within(name, row.generation, tp, offsets)
        epochs.update(ids)
        notes.append(f"{tp}{offsets} is committed already{_by(ids)}")
    if not ranges and not covered:
        notes.append(f"the interval {interval} holds no record that Kafka still has")
    return IntervalReport(notes=tuple(notes), covered_by=tuple(sorted(epochs)))


def _by(epochs: Sequence[int]) -> str:
    if not epochs:
        return ""
    return f", by epoch{'' if len(epochs) == 1 else 's'} {', '.join(map(str, epochs))}"
