"""Checks that a task's input is complete and did not end with a lost connection to its executor.

The reader of an Arrow stream cannot tell: a stream that breaks off between two batches looks like a shorter stream.
Its part would be committed incomplete, and Spark's next try of the task would be refused for its other rows. Spark
writes an end mark after the stream, which only its worker reads.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from epochline.errors import InputCutError


def require_whole_input(what: object) -> None:
    """Check the input after the last batch was read and before any of it is committed.

    Outside of a Spark Python worker there is no such stream, and nothing is checked.

    Args:
        what: the attempt, for the message.

    Raises:
        InputCutError: the executor died, gave up the task, or failed to read its input; Spark tries the task again.
    """
    stream = _stream_of_worker()
    # Blocks until the executor has written more or is gone, and consumes nothing.
    if stream is not None and not stream.peek(1):
        raise InputCutError(
            f"{what}: the executor broke off before the last record of a Spark partition; nothing of the partition"
            " was kept. Spark tries the task again, or reports why it could not read its input."
        )


def _stream_of_worker() -> Any | None:
    """Find the input stream of the worker's main function in its stack frame, because Spark does not pass it on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= set(frame.f_locals):
            return frame.f_locals["infile"]
        frame = frame.f_back
    return None
