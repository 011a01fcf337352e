"""Savepoints and restores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.epochs import PipelineRow
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.savepoint import Savepoint


class Savepoints(Protocol):
    """Savepoints, and what a restore undoes. Callers hold the pipeline's row lock where they change something."""

    def standing(self, pipeline: Pipeline, name: str, by: str, reason: str) -> Savepoint | None:
        """A savepoint of where the pipeline stands now, not kept yet; None where no epoch was committed."""

    def keep(self, savepoint: Savepoint, pipeline: Pipeline) -> None:
        """Write it, with a copy of every state table."""

    def find(self, pipeline: str, name: str) -> Savepoint | None:
        """The savepoint that a pipeline has under a name."""

    def of(self, pipeline: str) -> Sequence[Savepoint]:
        """All of a pipeline, the newest last."""

    def delete(self, pipeline: str, name: str) -> None:
        """Delete it, with its copies."""

    def export(self, savepoint: Savepoint, into: IO[bytes]) -> None:
        """Write it, with its copies, to a file."""

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        """Keep what a file holds, under its pipeline's name; new pipelines begin from it.

        Raises:
            SavepointFileError: the file is no savepoint or was damaged, or there is one of this name.
        """

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        """Ids of the epochs that were committed after one and are not undone, in order."""

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        """Put the savepoint's copies in place of what the state tables hold.

        Args:
            savepoint: which.
            pipeline: whose state tables.
            states: for each of them, of which state of the savepoint.
            epoch_id: of the restore: what wrote the rows, where the savepoint is another pipeline's.

        Raises:
            StateError: what is there afterwards is not what was saved.
        """

    def declaration(self, savepoint: Savepoint) -> str:
        """The declaration, as JSON, under which it was made."""

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
        """Write the restore's epoch, the savepoint's heads, and which epochs are undone; the epoch's id.

        ``origins`` says where each partition began, those that were met after the savepoint included: those go back to
        where they began, the others to the savepoint's head, with what was committed up to it carried over.
        Records that were quarantined by an undone epoch are forgotten, those that one requeued can be requeued again.
        """
