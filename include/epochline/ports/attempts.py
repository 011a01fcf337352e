"""Attempts and their staging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import PartitionCounts
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagingTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a Spark driver recorded for one sink: how many parts and rows, under which write id."""

    sink: str
    write_id: str
    parts: int
    rows: int
    body: Mapping[str, Any] | None = None
    """What the sink's seal left for its commit; None for a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSum:
    """Totals of the parts that an attempt staged for one sink under one write id."""

    sink: str
    write_id: str
    parts: int
    rows: int


class Attempts(Protocol):
    """Attempts, what they wrote, and their fencing (INV-4)."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        """Insert the epoch's next attempt and make its staging tables."""

    def live(self, epoch: Epoch) -> Attempt | None:
        """The epoch's attempt that is not fenced; None if every attempt is fenced or none was made."""

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        """Token of the attempt that committed an epoch; None if the epoch is not committed."""

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        """Wait for writers of the attempt that are in flight; block new ones until the transaction ends."""

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        """The ticket that `begin` gave out."""

    def fence(self, attempt: Attempt, reason: str) -> None:
        """Reject everything that the attempt writes from now on. The reason is added to the attempt's error."""

    def note_error(self, attempt: Attempt, error: RecordedError) -> None:
        """Add to the errors of an attempt that is not fenced, unless it has this one. The attempt has failed."""

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        """Close the attempt's staging: later parts are rejected."""

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        """Record the rows that targets refused, so that later attempts skip their records."""

    def finish(self, attempt: Attempt) -> None:
        """Record that the attempt's rows were committed and its staging tables dropped."""

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        """What the driver recorded, one per sink."""

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        """Totals of the parts, per sink and write id."""

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        """Counts of the records that the parts received, per topic and partition."""

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        """The parts of one sink, in the order of their numbers."""

    def end_sessions(self, attempt: Attempt) -> int:
        """End the sessions of the attempt's writers, and record each as a fenced write. Returns their number."""

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        """Attempts whose staging is no longer needed: fenced, or of an epoch that is COMMITTED or ABORTED."""

    def unexplained(self) -> Sequence[str]:
        """Names of staging tables that belong to no attempt of any pipeline, sorted."""

    def drop_staging(self, attempt: Attempt) -> None:
        """Drop the attempt's staging tables."""
