"""What a sink is: the eight steps of a two-phase sink, as Flink's documents name them (P4, C6). Pure.

=====================  ====================================================================================
``begin``              of an attempt, before Spark starts
``write``              on an executor: where one Spark partition's rows go
``seal``               pre-commit: nothing is written any more; what comes back is all that a commit needs
``commit``             after the epoch's own transaction: show the rows. Twice is once
``abort``              discard what an attempt wrote. Twice is once; nothing of a committed attempt is touched
``recover_and_commit`` the same as ``commit``, by a process that does not know how far an earlier one got
``recover_and_abort``  the same as ``abort``, likewise
``notify_complete``    every sink of the epoch shows it; may be lost by a crash
=====================  ====================================================================================

PostgreSQL tables implement it inside the epoch's transaction, Kafka and files after it, by roll-forward: what is
sealed and committed in the ledger is shown by whoever comes next (INV-6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

StoredOffsets = Sequence[Mapping[str, Any]]
"""As JSON, where a pipeline stands: ``[{"topic": …, "topic_id": …, "next": {"0": 17}}]``, with the offset at which each
partition's next epoch begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAttempt:
    """Whose rows a sink takes: one attempt of one epoch. The token is never used again, whatever is restored."""

    pipeline: str
    generation: int
    epoch_id: int
    attempt: int
    token: str

    def __str__(self) -> str:
        return f"attempt {self.attempt} of epoch {self.epoch_id} of {self.pipeline}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """What one Spark partition wrote: its number, its rows, and what its writer said at the end."""

    number: int
    rows: int
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """What a sealed attempt left for the commit: ``body`` is JSON, kept in the ledger between the two.

    ``reached`` is where the pipeline stands with this epoch. A sink that keeps it with what it shows can tell a ledger
    that went back in time how far it is (`Followed`).
    """

    attempt: SinkAttempt
    rows: int
    body: Mapping[str, Any]
    reached: StoredOffsets = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEpoch:
    """An epoch of a pipeline, as somebody else than the ledger knows it.

    ``token`` is that of the committed attempt, and ``reached`` as in `Committable`; None where a version wrote it that
    kept neither.
    """

    generation: int
    epoch_id: int
    token: str | None
    reached: StoredOffsets | None = None


class PartWriter(Protocol):
    """Takes the rows of one Spark partition, on an executor."""

    def write(self, batch: Any) -> None:
        """Take some rows, a ``pyarrow.RecordBatch``: the declared columns, and the record's position if it has one."""

    def finish(self) -> Mapping[str, Any]:
        """No more rows; what a seal must know of this part, as JSON. The rows must be safe now."""

    def close(self) -> None:
        """Let go of everything; after `finish`, or without it where the task failed."""


class Writing(Protocol):
    """The step of a sink that executors do."""

    def write(self, attempt: SinkAttempt, part: int) -> PartWriter:
        """Where one Spark partition's rows go. A repeated part is written anew; the first that is counted stays."""


class Committing(Protocol):
    """The steps of a sink that tasks do. Each may be called again after a crash, by another process."""

    def begin(self, attempt: SinkAttempt) -> None:
        """Make room for an attempt's rows."""

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        """Check that every part is there and can be committed; the body of the `Committable`.

        Raises:
            SealRefusedError: something is missing, or could not be committed.
        """

    def commit(self, committable: Committable) -> None:
        """Show the rows.

        Raises:
            SinkUnavailableError: the sink is down; a repeat helps.
            SinkError: it refuses; the message says what to do.
        """

    def abort(self, attempt: SinkAttempt) -> None:
        """Discard what the attempt wrote."""

    def recover_and_commit(self, committable: Committable) -> None:
        """Show the rows, whatever an earlier process did of it."""

    def recover_and_abort(self, attempt: SinkAttempt) -> None:
        """Discard what the attempt wrote, whatever an earlier process did of it."""

    def notify_complete(self, committable: Committable) -> None:
        """Every sink shows the epoch, and the ledger says so."""


class Sink(Writing, Committing, Protocol):
    """One declared sink of one pipeline."""


class Measured(Protocol):
    """A sink whose next epoch may be refused for the time that it would take."""

    def sending_seconds(self) -> float | None:
        """How long the rows took that this object's last commit sent; None where it found them there already."""


class Followed(Protocol):
    """A sink that says what it shows, so that a ledger which went back in time is found out (trap 25)."""

    def newest_shown(self, pipeline: str) -> ShownEpoch | None:
        """The newest epoch of the pipeline that is shown; None where there is none, or nobody can tell.

        Raises:
            SinkUnavailableError: the sink is down. It is not waited for: it asks again before it shows anything.
            SinkError: it cannot be told, or another pipeline writes here.
        """


class Preflighted(Protocol):
    """A sink that can be asked before an epoch is planned whether it would take one."""

    def preflight(self, pipeline: str) -> None:
        """Refuse where no epoch could be shown.

        Raises:
            SinkUnavailableError: the sink is down. Planning goes on: the epoch is shown when it is back.
            SinkError: it would refuse; nothing is planned.
        """
