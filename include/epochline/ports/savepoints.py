"""Savepoints and restores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.epochs import PipelineRow
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.savepoint import Savepoint


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
        """Write a savepoint file of the newest committed epoch, with its ranges, sinks and counts (C11).

        The file appears complete, by a rename, and only its owner can read it. Then the pipeline's files in the folder
        are deleted, except those of its ``keep`` newest epochs up to this one. Needs no lock: if another epoch was
        committed while the state was read, nothing is written.

        Args:
            pipeline: the newest committed epoch's declaration.
            folder: the folder of the pipeline's epoch files; it is created if missing.
            keep: how many files are kept, at least 1.

        Returns:
            The file's path; None if the epoch has its file already or another epoch was committed meanwhile.

        Raises:
            SavepointFileError: the folder cannot be written.
        """

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        """Keep the savepoint of a file, under its pipeline's name. New pipelines can begin from it.

        Raises:
            SavepointFileError: the file is damaged or no savepoint, or the name is taken.
        """

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        """Ids of the epochs committed after this one and not undone, in order."""

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        """Put the savepoint's copies in place of what the state tables hold.

        Args:
            savepoint: holds the copies.
            pipeline: has the state tables.
            states: by state table, the savepoint's state that goes there.
            epoch_id: of the restore. Rows from another pipeline's savepoint count as written by it.

        Raises:
            StateError: a table does not hold what was saved.
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

        ``origins`` has the origin of every partition. A partition in the savepoint goes back to its head there, with
        the commits up to it carried over; a partition that appeared later goes back to its origin.
        Records that an undone epoch quarantined are deleted; records that it requeued can be requeued again.
        """
