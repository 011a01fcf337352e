"""Idle sources: whether an epoch that reads nothing would close windows (E11)."""

from __future__ import annotations

from epochline.declare.pipeline import Pipeline
from epochline.ports import Transaction


def closes_windows(tx: Transaction, pipeline: Pipeline) -> bool:
    """Whether windows end because time passed without records. Needs ``idle_after`` in the declaration.

    The caller has made sure that no partition has unread records.
    """
    windows = pipeline.windows
    if windows is None or windows.time.idle_after is None:
        return False
    known = tx.states.event_times(pipeline)
    after = known.after(windows.time, {})
    return after is not None and after != known.watermark and tx.states.closes(pipeline, known.watermark, after)
