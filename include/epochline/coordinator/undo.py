"""Remove the rows of committed epochs from the targets, for a restore or a promoted replay."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.declare.pipeline import Pipeline
from epochline.errors import TargetError
from epochline.ports import Transaction


def undo(tx: Transaction, pipeline: Pipeline, epochs: Sequence[int]) -> None:
    """Remove the rows of these epochs from every target, and put back what they replaced.

    Raises:
        TargetError: an append target has more rows with these epochs' numbers than the epochs wrote; a row does not go
            or come back; or rows of another table would be deleted or changed with it.
    """
    if not epochs:
        return
    written = tx.savepoints.rows_sealed(pipeline.name, epochs)
    changed_rows = tx.targets.undo(pipeline, epochs)
    for sink in pipeline.targets:
        changed = changed_rows[sink.table]
        if sink.mode == "append" and changed > written.get(sink.table, 0):
            raise TargetError(
                f"{sink} holds {changed} rows with the numbers of epochs {', '.join(map(str, epochs))} of"
                f" {pipeline.name}, which wrote {written.get(sink.table, 0)}: rows of another pipeline, or copies."
                " Nothing was changed. Move those away first.",
                f"plan {pipeline.name}",
            )
