"""Findings of an audit, and their receiver. No finding shows a value of a record."""

from dataclasses import dataclass, field
from typing import Protocol

from epochline.protocol.balances import PartitionCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference from what the ledger and Kafka say.

    ``where`` is a target's name, ``quarantine`` or ``ledger``. ``kind`` is ``missing`` (a record without its row),
    ``doubled`` (one row too many for a record), ``extra`` (a row without a record of the epoch), ``changed`` (``said``
    names the columns), or for the ledger ``count`` and ``digest``. A difference of a whole partition has no offset, and
    one of a whole table, such as state that epochs did not leave so, no topic.
    """

    epoch_id: int | None
    where: str
    kind: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    row: int | None = None
    said: str | None = None

    def __str__(self) -> str:
        at = "" if self.offset is None else f" offset {self.offset}"
        row = f" row {self.row}" if self.row else ""
        epoch = "no committed epoch" if self.epoch_id is None else f"epoch {self.epoch_id}"
        remark = f": {self.said}" if self.said else ""
        if self.topic is None:  # of no partition
            return f"{self.where}: {self.kind}{'' if self.epoch_id is None else f' ({epoch})'}{remark}"
        return f"{self.where}: {self.kind}: {self.topic}-{self.partition}{at}{row} ({epoch}){remark}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """One committed range: the ledger's counts, the counts of the records in Kafka now, and what was not judged."""

    topic: str
    partition: int
    start: int
    until: int
    ledger: PartitionCounts
    found: PartitionCounts | None
    not_judged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkResult:
    """How far the rows of one epoch in one target were compared.

    ``judged`` is False if a required comparison was impossible; ``said`` is the reason why values were not compared.
    """

    sink: str
    said: str | None
    judged: bool = True


@dataclass(slots=True, kw_only=True)
class EpochResult:
    """One committed epoch, audited."""

    epoch_id: int
    kind: str
    generation: int
    superseded: bool
    sinks: list[SinkResult]
    partitions: list[PartitionResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differences: int = 0

    @property
    def judged(self) -> bool:
        """Whether every comparison of the epoch was possible."""
        return all(sink.judged for sink in self.sinks) and not any(read.not_judged for read in self.partitions)


@dataclass(slots=True, kw_only=True)
class Summary:
    """An audit as a whole. ``notes`` lists declared losses."""

    epochs: int = 0
    records: int = 0
    differences: int = 0
    not_judged: int = 0
    """Number of epochs with a comparison that was impossible."""
    notes: tuple[str, ...] = ()
    not_judged_targets: tuple[str, ...] = ()
    """Targets whose rows could not be compared after the last epoch; the notes say why."""


class Reporter(Protocol):
    """Receives the findings of an audit while it runs, so that none has to be kept until its end."""

    def begin(self, epochs: int, offsets: int) -> None:
        """Receive the number of epochs and offsets to audit."""

    def advance(self, offsets: int) -> None:
        """Receive the number of further offsets that were audited."""

    def difference(self, found: Difference) -> None:
        """Receive a difference."""

    def epoch(self, result: EpochResult) -> None:
        """Receive the result of an epoch, after its differences."""
