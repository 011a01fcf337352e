"""The interface of a sink: the eight steps of a two-phase commit, named as in Flink. Pure.

======================  ====================================================================================
``begin``               before Spark starts: make room for an attempt
``write``               on an executor: take one Spark partition's rows
``seal``                pre-commit: nothing is written any more; return all that a commit needs
``commit``              after the epoch's own transaction: show the rows; a repeat changes nothing
``abort``               discard an attempt's rows; a repeat changes nothing; a committed attempt is untouched
``recover_and_commit``  like ``commit``, in a process that does not know how far an earlier one got
``recover_and_abort``   like ``abort``, in a process that does not know how far an earlier one got
``notify_complete``     every sink shows the epoch; a crash may lose this call
======================  ====================================================================================

PostgreSQL tables take these steps inside the epoch's transaction, Kafka and files after it. If a process dies after
that transaction, the next run shows the epoch (INV-6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

StoredOffsets = Sequence[Mapping[str, Any]]
"""A pipeline's next offsets as JSON: ``[{"topic": …, "topic_id": …, "next": {"0": 17}}]``, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAttempt:
    """One attempt of one epoch, as sinks know it. Its token is unique even after a restore."""

    pipeline: str
    generation: int
    epoch_id: int
    attempt: int
    token: str

    def __str__(self) -> str:
        return f"attempt {self.attempt} of epoch {self.epoch_id} of {self.pipeline}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """One written Spark partition: its number, its number of rows, and the message of its writer."""

    number: int
    rows: int
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """A sealed attempt, as its commit needs it: the ledger keeps ``body`` as JSON between seal and commit.

    ``reached`` is the pipeline's position after this epoch. A sink that stores it with the rows can report it to a
    ledger that was restored from a backup (`Inspectable`).
    """

    attempt: SinkAttempt
    rows: int
    body: Mapping[str, Any]
    reached: StoredOffsets = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEpoch:
    """An epoch of a pipeline, as a sink or Kafka knows it; an older version wrote no token and no position."""

    generation: int
    epoch_id: int
    token: str | None
    reached: StoredOffsets | None = None


class PartWriter(Protocol):
    """Takes the rows of one Spark partition, on an executor."""

    def write(self, batch: Any) -> None:
        """Take a ``pyarrow.RecordBatch``: the declared columns, and the record's position if it has one."""

    def finish(self) -> Mapping[str, Any]:
        """End the part and return what its seal must know, as JSON. The rows must be durable on return."""

    def close(self) -> None:
        """Release all resources; called after `finish`, or without it if the task failed."""


class Writing(Protocol):
    """The step of a sink on executors."""

    def write(self, attempt: SinkAttempt, part: int) -> PartWriter:
        """Open a writer for one Spark partition. A repeated part is written again; the first one counted stays."""


class Committing(Protocol):
    """The steps of a sink in tasks. Each may be called again after a crash, by another process.

    A sink that inherits them writes `seal`, `commit` and `abort`; the other steps have a default.
    """

    def begin(self, attempt: SinkAttempt) -> None:
        """Make room for an attempt's rows. By default, nothing has to be made."""
        return
        return

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        """Check that every part can be committed, and return the `Committable`'s body; raises `SealRefusedError`."""

    def commit(self, committable: Committable) -> None:
        """Show the rows; raises `SinkUnavailableError` if a repeat helps, else `SinkError` with what to do."""

    def abort(self, attempt: SinkAttempt) -> None:
        """Discard what the attempt wrote."""

    def recover_and_commit(self, committable: Committable) -> None:
        """Show the rows, however far an earlier process got. By default the same as `commit`."""
        self.commit(committable)

    def recover_and_abort(self, attempt: SinkAttempt) -> None:
        """Discard what the attempt wrote, however far an earlier process got. By default the same as `abort`."""
        self.abort(attempt)

    def notify_complete(self, committable: Committable) -> None:
        """Learn that every sink shows the epoch and that the ledger has recorded it. Does nothing by default."""
        return
        return


class Sink(Writing, Committing, Protocol):
    """One declared sink of one pipeline."""


class Measured(Protocol):
    """A sink that measures its speed, from which a later seal predicts how long an epoch takes."""

    def sending_seconds(self) -> float | None:
        """Seconds that this object's last commit took to send its rows; None if they were there already."""


class Inspectable(Protocol):
    """A sink that reports the epochs it shows, which reveals a ledger that was restored from a backup."""

    def newest_shown(self, pipeline: str) -> ShownEpoch | None:
        """The newest shown epoch of the pipeline, if the sink keeps a record of epochs.

        Raises `SinkUnavailableError` if the sink is down: the check goes on without it. Raises `SinkError` if the
        record is damaged, or another pipeline writes here.
        """


class Rechecked(Protocol):
    """A sink whose sealed rows lie where another machine may not reach them."""

    def check_sealed(self, committable: Committable) -> None:
        """Check, before the epoch is committed, that this machine could show the rows.

        Raises `SinkUnavailableError` if the sink is down, `SinkError` if rows are missing: nothing is committed.
        """


class Preflighted(Protocol):
    """A sink that a plan can check before it plans an epoch."""

    def preflight(self, pipeline: str) -> None:
        """Check that an epoch could be shown, without a change: `epochline plan` calls it too.

        Raises `SinkUnavailableError` if the sink is down: the epoch is shown when it is back. Raises `SinkError` if the
        sink would refuse every epoch: nothing is planned.
        """


class Prepared(Protocol):
    """A sink in which something must be made before it shows an epoch, or which only a write can check."""

    def prepare(self, pipeline: str) -> None:
        """Make it. A plan calls this after each preflight; a repeat changes nothing. Raises as `preflight`."""
