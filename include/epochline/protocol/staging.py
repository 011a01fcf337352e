"""What staging looks like: which columns an attempt's tables have, and what a writer must know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochline.protocol.refused import Refused
from epochline.protocol.sink import SinkAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """One staging table of one attempt: whose rows it holds and its columns, in order, with PostgreSQL types.

    ``not_null`` and ``labels`` (of enums) are the target's own rules, as far as a writer was told of them.
    """

    sink: str
    table: str
    columns: Mapping[str, str]
    not_null: frozenset[str] = frozenset()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTicket:
    """All that a writer of one attempt must know, and nothing that is secret.

    ``tables`` has one entry per table of the declaration, in its order, and the quarantine last; ``external`` one per
    sink beside the database, as if there were a staging table for it. ``refused`` are records that a target refused in
    an earlier attempt: this one sets them aside.
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
        """All that the attempt's rows go to."""
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
        """What the rows of a sink, or of the quarantine, go to."""
        return next(table for table in self.written if table.sink == sink)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of epoch {self.epoch_id} of {self.pipeline}"
