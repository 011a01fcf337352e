"""Whether a task's input ended because Spark said so, or because the connection to its executor did.

To the reader of an Arrow stream both look the same: a stream that breaks off between two batches is a shorter stream.
A part made of it would be committed without its rest, and Spark's next try of the task would then be refused as one
that gives other rows. Spark's own word comes behind the stream, where only its worker reads it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from epochline.errors import InputCutError


def require_whole_input(what: object) -> None:
    """To be called when the last batch was read, before anything of it is kept.

    Outside a Python worker of Spark there is no such stream, and nothing to ask.

    Args:
        what: the attempt, for the message.

    Raises:
        InputCutError: the executor died, gave the task up, or could not read on; Spark tries the task again.
    """
    stream = _stream_of_worker()
    # Waits until the executor has written its next word or is gone; takes nothing away.
    if stream is not None and not stream.peek(1):
        raise InputCutError(
            f"{what}: the executor broke off before the last record of a Spark partition; nothing of the partition"
            " was kept. Spark tries it again, or says why it could not read on."
        )


def _stream_of_worker() -> Any | None:
    """What the worker's main function reads from; it is handed to nobody, and found in its frame."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= set(frame.f_locals):
            return frame.f_locals["infile"]
        frame = frame.f_back
    return None
