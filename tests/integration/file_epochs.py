"""Epochs of a file sink, step by step, as a run's processes take them; `main` is what a process that is killed does."""

import json
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset

from epochline.arrow.cast.types import record_schema
from epochline.declare.external import Files
from epochline.protocol.sink import Committable, SinkAttempt, WrittenPart
from epochline.sinks.files import FileSink
from tests.reading import rows_in_folder

COLUMNS = {"visitor": "text", "pages": "integer"}
PARTS = 3
ROWS_OF_PART = 40


def sink_at(path: str) -> FileSink:
    return FileSink(Files(path=path, columns=COLUMNS, aggregated=True).spec)


def attempt_of(epoch_id: int, number: int = 1, *, pipeline: str = "visits", token: str = "") -> SinkAttempt:
    token = token or str(uuid.uuid4())
    return SinkAttempt(pipeline=pipeline, generation=1, epoch_id=epoch_id, attempt=number, token=token)


def visitors(epoch_id: int, part: int) -> list[str]:
    return [f"visitor {epoch_id}-{part}-{row}" for row in range(ROWS_OF_PART)]


def all_visitors(*epoch_ids: int) -> list[str]:
    return sorted(name for epoch_id in epoch_ids for part in range(PARTS) for name in visitors(epoch_id, part))


def batch_of(names: Sequence[str | None]) -> pa.RecordBatch:
    columns = {"visitor": list(names), "pages": list(range(len(names)))}
    return pa.RecordBatch.from_pydict(columns, schema=record_schema(COLUMNS))


def write_part(sink: FileSink, attempt: SinkAttempt, part: int) -> WrittenPart:
    """One task: its rows come in two batches."""
    names = visitors(attempt.epoch_id, part)
    writer = sink.write(attempt, part)
    try:
        writer.write(batch_of(names[:25]))
        writer.write(batch_of(names[25:]))
        return WrittenPart(number=part, rows=len(names), message=writer.finish())
    finally:
        writer.close()


def stage(sink: FileSink, attempt: SinkAttempt) -> list[WrittenPart]:
    sink.begin(attempt)
    return [write_part(sink, attempt, part) for part in range(PARTS)]


def seal(sink: FileSink, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Committable:
    # As the ledger keeps it.
    body = json.loads(json.dumps(sink.seal(attempt, parts)))
    return Committable(attempt=attempt, rows=sum(part.rows for part in parts), body=body)


def sealed(sink: FileSink, attempt: SinkAttempt) -> Committable:
    return seal(sink, attempt, stage(sink, attempt))


def committed(sink: FileSink, attempt: SinkAttempt) -> Committable:
    committable = sealed(sink, attempt)
    sink.commit(committable)
    return committable


def read_visitors(path: str) -> list[str]:
    """What a reader that follows the manifest reads."""
    return sorted(row["visitor"] for row in rows_in_folder(path))


def ledger(folder: str) -> Path:
    """Stands for the ledger of a sink's folder: there the committable of an epoch is kept, on a disk even of a store."""
    return (
        Path(tempfile.gettempdir(), f"ledger {quote(folder, safe='')}") if "://" in folder else Path(f"{folder} ledger")
    )


def keep(committable: Committable, folder: str) -> None:
    ledger(folder).write_text(json.dumps(asdict(committable)))


def kept(folder: str) -> Committable:
    stored = json.loads(ledger(folder).read_text())
    return Committable(attempt=SinkAttempt(**stored["attempt"]), rows=stored["rows"], body=stored["body"])


def main(step: str, folder: str) -> None:
    """Take a step of epoch 2: ``whole`` (prepare to commit), ``commit`` what is kept, or ``abort`` (begin, write, abort)."""
    sink = sink_at(folder)
    attempt = attempt_of(2, token="0f3c8a52-one")
    if step == "whole":
        sink.prepare(attempt.pipeline)
        committable = sealed(sink, attempt)
        keep(committable, folder)
        sink.commit(committable)
    elif step == "commit":
        sink.commit(kept(folder))
    else:
        stage(sink, attempt)
        sink.abort(attempt)
