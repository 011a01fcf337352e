"""What operators decided and did, settings and failures of epochs, and savepoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.epochs import PipelineRow
from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.savepoint import Savepoint

PAUSE_AFTER_FAILURES = "pause after failures"
PAUSE_BEHIND = "pause behind"
PAUSE_DOWN = "pause down"
"""Actions that a pipeline takes by itself. The first one's row keeps under ``aborts`` the total of aborts so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operator decided about a pipeline: who, when, why."""

    by: str
    at: datetime
    reason: str
    command: str | None = None
    """The command that goes on, where it is not ``resume``."""

    def __str__(self) -> str:
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S %Z} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """Whether a pipeline is paused or dropped, and by whose decision."""

    paused: Decision | None = None
    dropped: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an operator did: who, when, why, and the values before and after, as JSON."""

    pipeline: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    epoch_id: int | None = None
    action_id: int | None = None
    """Given by the ledger; ids of one pipeline increase."""
    acted_at: datetime | None = None


class Operators(Protocol):
    """What operators did to a pipeline. Callers that change something hold the pipeline's row lock."""

    def standing(self, pipeline: str) -> PipelineStatus:
        """Whether the pipeline is paused or dropped."""

    def pause(self, pipeline: str, by: str, reason: str, command: str | None = None) -> None:
        """Stop planning epochs."""

    def resume(self, pipeline: str) -> None:
        """Undo `pause`."""

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        """Mark the pipeline dropped, permanently, and release its targets."""

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        """Increment the generation and replace the cluster. Commits of earlier generations are kept, as superseded."""

    def record(self, row: ActionRow) -> ActionRow:
        """Write an action down. It never changes."""

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        """Actions on the pipeline, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborts:
    """How often epochs of a pipeline were aborted."""

    in_a_row: int
    """Since the last commit, or since aborts last paused the pipeline."""
    ever: int


class History(Protocol):
    """Settings of epochs, the time of the last commit, and failures since."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep with the epoch its settings and where each comes from."""

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        """The settings that the epoch was planned with; empty if none were kept."""

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        """Time until the last commit is ``pause`` ago, by the database's clock; zero if it is."""

    def interval_left(self, pipeline: str, interval: timedelta) -> timedelta:
        """Time until the last epoch, operators' epochs left out, was planned ``interval`` ago; zero if it was."""

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        """Number of attempts that ended unsealed within the interval before now."""

    def errors(self, epoch: Epoch) -> Sequence[tuple[str | None, str | None]]:
        """Class and text of the error of each attempt since the epoch was last planned, the newest first."""

    def plan_failed(self, pipeline: str, run: Run, error: RecordedError) -> None:
        """Keep why a run has no epoch. A repeat by the same run counts once."""

    def plan_succeeded(self, pipeline: str) -> None:
        """Keep the time, and forget what `plan_failed` kept."""

    def measured(self, pipeline: str, key: str, epochs: int) -> Sequence[Decimal]:
        """Numbers of a measure in the newest committed epochs that have it, as many as asked for, the newest first.

        Without epochs that were undone, requeues, replays, and epochs that only closed windows.
        """

    def aborts(self, pipeline: str) -> Aborts:
        """How often epochs of the pipeline were aborted. A reopened epoch that is aborted again counts twice."""


class Savepoints(Protocol):
    """Savepoints, and what a restore undoes. Callers that change something hold the pipeline's row lock."""

    def standing(self, pipeline: Pipeline, name: str, by: str, reason: str) -> Savepoint | None:
        """A savepoint of the pipeline's present position, not kept yet; None if no epoch was committed."""

    def keep(self, savepoint: Savepoint, pipeline: Pipeline) -> None:
        """Write a savepoint with a copy of every state table."""

    def find(self, pipeline: str, name: str) -> Savepoint | None:
        """The pipeline's savepoint of this name; None if no savepoint has it."""

    def of(self, pipeline: str) -> Sequence[Savepoint]:
        """The pipeline's savepoints, oldest first."""

    def delete(self, pipeline: str, name: str) -> None:
        """Delete a savepoint with its copies."""

    def export(self, savepoint: Savepoint, into: IO[bytes]) -> None:
        """Write a savepoint with its copies to a file."""

    def leave_file(self, pipeline: Pipeline, folder: Path, *, keep: int) -> Path | None:
        """Write a savepoint file of the newest committed epoch, with its ranges, sinks and counts. Needs no lock.

        The file appears complete, and only its owner can read it. Then the pipeline's files in the folder are deleted,
        except those of the ``keep`` (at least 1) newest epochs up to this one.

        Returns:
            The file's path; None if the epoch has its file already or another epoch was committed meanwhile.

        Raises:
            SavepointFileError: the folder, which is created if missing, cannot be written.
        """

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        """Keep a file's savepoint. `SavepointFileError`: the file is no savepoint, is damaged, or its name is taken."""

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        """Ids of the epochs committed after this one and not undone, in order."""

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        """Put the savepoint's copies in place of what the state tables hold.

        ``states`` names, by state table, the savepoint's state that goes there. Rows from another pipeline's savepoint
        get ``epoch_id``, the restore's. Raises `StateError` if a table does not hold what was saved.
        """

    def declaration(self, savepoint: Savepoint) -> str:
        """The declaration under which the savepoint was made, as JSON."""

    def rows_sealed(self, pipeline: str, epochs: Sequence[int]) -> Mapping[str, int]:
        """How many rows these epochs sealed, by table: sinks, state tables, the quarantine."""

    def restore(
        self,
        savepoint: Savepoint,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        undone: Sequence[int],
        origins: Mapping[TopicPartition, int],
    ) -> int:
        """Write the restore's epoch, the savepoint's heads and the undone epochs. Returns the epoch's id.

        A partition in the savepoint goes back to its head there, with the commits up to it carried over; a later one
        goes back to its origin, of which ``origins`` has one per partition. Records that an undone epoch quarantined
        are deleted; records that it requeued can be requeued again.
        """
