"""Taking the rows of committed epochs out of the targets, for a restore and for a replay that takes their place."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.declare.pipeline import Pipeline
from epochline.errors import TargetError
from epochline.ports import Transaction


def undo(tx: Transaction, pipeline: Pipeline, epochs: Sequence[int]) -> None:
    """Take the rows of these epochs out of every target, and put back what they replaced.

    Raises:
        TargetError: an append target has more rows with these epochs' numbers than the epochs wrote: others' rows.
    """
    written = tx.savepoints.rows_sealed(pipeline.name, epochs)
    for sink in pipeline.targets:
        changed = tx.targets.undo(pipeline, sink, epochs)
        if sink.mode == "append" and changed > written.get(sink.table, 0):
            raise TargetError(
                f"{sink} holds {changed} rows with the numbers of epochs {', '.join(map(str, epochs))} of"
                f" {pipeline.name}, which wrote {written.get(sink.table, 0)}: rows of another pipeline, or copies."
                " Nothing was changed. Move those away first."
            )
