"""Staging tables of an attempt, and the ticket with which writers fill them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochline.protocol.refused import Refused
from epochline.protocol.sink import SinkAttempt

DIGEST = "digest"
"""In the body of a manifest: the digest of the staged rows at the seal. Earlier versions left none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """One staging table of one attempt: its columns, in order, and what is known of the target's own rules."""

    sink: str
    table: str
    columns: Mapping[str, str]
    not_null: frozenset[str] = frozenset()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    by_catalog: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTicket:
    """All that a writer of one attempt needs, without secrets.

    ``tables`` end with the quarantine, ``external`` has the form of staging tables. ``refused`` are records that a
    target refused in an earlier attempt.
    """

    pipeline: str
    epoch_id: int
    attempt: int
    attempt_id: int
    application_name: str
    tables: tuple[StagedTable, ...]
    generation: int = 1
    token: str = ""
    external: tuple[StagedTable, ...] = ()
    refused: Refused = field(default_factory=dict)

    @property
    def written(self) -> tuple[StagedTable, ...]:
        """All destinations of the attempt's rows."""
        return (*self.tables, *self.external)

    @property
    def sink_attempt(self) -> SinkAttempt:
        """The attempt, as sinks know it."""
        return SinkAttempt(
            pipeline=self.pipeline,
            generation=self.generation,
            epoch_id=self.epoch_id,
            attempt=self.attempt,
            token=self.token,
        )

    def table(self, sink: str) -> StagedTable:
        """The destination of the rows of a sink or of the quarantine."""
        return next(table for table in self.written if table.sink == sink)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of epoch {self.epoch_id} of {self.pipeline}"
