"""Attempts and their staging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.offsets import PartitionCounts
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagingTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a driver wrote down for one sink: how many parts and rows, under which write id."""

    sink: str
    write_id: str
    parts: int
    rows: int
    body: Mapping[str, Any] | None = None
    """What the sink's seal left for its commit; None of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSum:
    """The parts that the database holds for one sink and write id of an attempt, added up."""

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
        """The epoch's attempt that is not fenced."""

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        """Token of the attempt that an epoch was committed by; None where no attempt has committed it."""

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        """Wait until no writer of the attempt is in flight, and keep new ones out, until the transaction ends."""

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        """The ticket that `begin` gave out."""

    def fence(self, attempt: Attempt, reason: str) -> None:
        """From here on nothing that the attempt writes can become visible."""

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        """Close the attempt's staging: no part is accepted any more."""

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        """Note the rows that targets refused: later attempts leave their records out, of other rows people are told."""

    def finish(self, attempt: Attempt) -> None:
        """Note that the attempt's rows were committed and its staging tables are gone."""

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        """What the driver wrote down, one per sink."""

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        """What the parts say, per sink and write id."""

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        """What the parts received, per topic and partition."""

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        """The parts of one sink, in the order of their numbers."""

    def end_sessions(self, attempt: Attempt) -> int:
        """End the database sessions of the attempt's writers, each recorded as a fenced write; how many."""

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        """Attempts whose staging is no longer needed: fenced, or of an epoch that is COMMITTED or ABORTED."""

    def unexplained(self) -> Sequence[str]:
        """Tables beside the staging tables that no attempt explains, of any pipeline, sorted."""

    def drop_staging(self, attempt: Attempt) -> None:
        """Drop the attempt's staging tables."""
