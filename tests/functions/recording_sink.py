"""A sink of a third party that writes down which of its methods was called, and fails or waits as files say.

Next to the log, its folder holds what its readers see (``shown/``). A file ``down.METHOD`` makes the sink be down for
that method, ``broken.METHOD`` makes it refuse, ``mistaken.METHOD`` raises what no sink should, and with ``mistaken``
the sink cannot even be made. A seal takes and leaves the lock on ``gate``, if there is that file.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochline.errors import SealRefusedError, SinkError, SinkUnavailableError
from epochline.protocol.sink import Committable, SinkAttempt, WrittenPart


class RecordingSink:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        if (self._folder / "mistaken").exists():
            raise OSError("the recording sink finds no library")

    def preflight(self, pipeline: str) -> None:
        if (self._folder / "down.preflight").exists():
            raise SinkUnavailableError("the recording sink is down for a look.")
        if (self._folder / "broken.preflight").exists():
            raise SinkError(f"the recording sink refuses every epoch of {pipeline}.")

    def prepare(self, pipeline: str) -> None:
        (self._folder / "prepared").touch()

    def begin(self, attempt: SinkAttempt) -> None:
        self._called("begin", attempt)

    def write(self, attempt: SinkAttempt, part: int) -> RecordingPart:
        self._called("write", attempt)
        return RecordingPart()

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        self._called("seal", attempt)
        gate = self._folder / "gate"
        if gate.exists():
            with gate.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
        return {"values": [value for part in parts for value in part.message["values"]]}

    def commit(self, committable: Committable) -> None:
        self._called("commit", committable.attempt)
        self._show(committable)

    def abort(self, attempt: SinkAttempt) -> None:
        self._called("abort", attempt)

    def recover_and_commit(self, committable: Committable) -> None:
        self._called("recover_and_commit", committable.attempt)
        self._show(committable)

    def recover_and_abort(self, attempt: SinkAttempt) -> None:
        self._called("recover_and_abort", attempt)

    def notify_complete(self, committable: Committable) -> None:
        self._called("notify_complete", committable.attempt)

    def _called(self, method: str, attempt: SinkAttempt) -> None:
        with (self._folder / "log").open("a") as log:
            log.write(f"{method} {attempt.epoch_id} {attempt.attempt}\n")
        if (self._folder / f"down.{method}").exists():
            raise SinkUnavailableError(f"{attempt}: the recording sink is down for {method}.")
        if (self._folder / f"mistaken.{method}").exists():
            raise ZeroDivisionError(f"the recording sink is mistaken in {method}")
        if (self._folder / f"broken.{method}").exists():
            refusal = SealRefusedError if method == "seal" else SinkError
            raise refusal(f"{attempt}: the recording sink refuses {method}.")

    def _show(self, committable: Committable) -> None:
        shown = self._folder / "shown"
        shown.mkdir(exist_ok=True)
        place = shown / f"{committable.attempt.epoch_id:06}"
        place.write_text(json.dumps(committable.body["values"]))


class RecordingPart:
    def __init__(self) -> None:
        self._values: list[str | None] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._values += batch.column("value").to_pylist()

    def finish(self) -> Mapping[str, Any]:
        return {"values": self._values}

    def close(self) -> None:
        pass
