"""What a Spark job writes into the ledger in addition to its rows: parts, manifests, the end mark, refused writes.

The statements are in ``queries/job.sql``. They are written for READ COMMITTED, which
`epochline.postgres.ledger.job_session` sets.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have

from epochline.failpoints import failpoint
from epochline.postgres.queries.named import statement
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.failures import RecordedError
from epochline.protocol.refused import RefusedRow

PARSE = "_parse"
"""The name under which parse tasks of a job with a transform store their counts. It is no sink: it has no rows."""

EXTERNAL = "external"
"""The key of a part's message for what an external sink returned. It differs between two tries of a part."""

_TIMES = ("newest", "oldest_timestamp", "newest_timestamp")
"""The times in `PartitionCounts`. A part that an older version wrote has only the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one Spark partition wrote into one sink. Two tries must have the same number of rows and the same message.

    The message of the quarantine's part has the counts and the source digest of every Kafka partition (`counts_of`).
    """

    sink: str
    rows: int
    message: Mapping[str, Any] = field(default_factory=dict)


def message_of(counts: Mapping[tuple[str, int], PartitionCounts]) -> dict[str, Any]:
    """The message of a part with the counts per Kafka partition, in a fixed order. Digests of 64 bits are text."""
    seen = []
    for (topic, partition), partition_counts in sorted(counts.items()):
        times = {name: time and time.isoformat() for name, time in _times_of(asdict(partition_counts)).items()}
        place = {"topic": topic, "partition": partition}
        seen.append(place | asdict(partition_counts) | times | {"digest": str(partition_counts.digest)})
    return {"seen": seen}


def counts_of(message: Mapping[str, Any]) -> dict[tuple[str, int], PartitionCounts]:
    """The counts in the message of a part (the inverse of `message_of`); empty without counts."""
    counts = {}
    for seen in message.get("seen", ()):
        times = {name: text and datetime.fromisoformat(text) for name, text in _times_of(seen).items()}
        values = {**seen, **times, "digest": int(seen["digest"])}
        place = values.pop("topic"), values.pop("partition")
        counts[place] = PartitionCounts(**values)
    return counts


def _times_of(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: counts.get(name) for name in _TIMES}


def insert_parts(cursor: Cursor, attempt_id: int, write_id: str, spark_partition: int, parts: Sequence[Part]) -> bool:
    """Insert the part rows of one Spark partition; False if the attempt is fenced, sealed or gone.

    After False the caller must roll back.

    Raises:
        psycopg2.errors.UniqueViolation: an earlier try committed this part.
    """
    place = {"attempt_id": attempt_id, "write_id": write_id, "spark_partition": spark_partition}
    for part in parts:
        failpoint("write.part")
        values = {"sink": part.sink, "rows": part.rows, "message": json.dumps(part.message), "parse": PARSE}
        cursor.execute(statement("insert_part"), {**place, **values})
        if cursor.rowcount != 1:
            return False
    return True


def first_parts(cursor: Cursor, attempt_id: int, write_id: str, spark_partition: int) -> dict[str, Part]:
    """The parts that an earlier try of a Spark partition committed, by sink."""
    failpoint("write.first")
    place = {"attempt_id": attempt_id, "write_id": write_id, "spark_partition": spark_partition}
    cursor.execute(statement("first_parts"), place)
    return {sink: Part(sink=sink, rows=rows, message=message) for sink, rows, message in cursor.fetchall()}


def insert_manifest(cursor: Cursor, attempt_id: int, write_id: str, parts: int, rows: Mapping[str, int]) -> bool:
    """Insert one manifest row per sink of a finished write; False if the attempt is fenced, sealed or gone.

    ``parts`` is the number of Spark partitions that wrote. ``rows`` has every sink, those without rows included.
    """
    for sink, count in rows.items():
        failpoint("manifest.row")
        values = {"attempt_id": attempt_id, "sink": sink, "write_id": write_id, "parts": parts, "rows": count}
        cursor.execute(statement("insert_manifest"), values)
        if cursor.rowcount != 1:
            return False
    return True


def end_job(cursor: Cursor, attempt_id: int, watermark: datetime | None = None, too_late: int | None = None) -> bool:
    """Write the job's end mark; False if the attempt is fenced, sealed or gone.

    The same transaction deletes the parts under the name `PARSE`: nothing reads them afterwards.

    Args:
        cursor: in a transaction of its own.
        attempt_id: the attempt of the job.
        watermark: the watermark by which the job closed windows.
        too_late: how many records came too late for any window; None without windows.
    """
    failpoint("end.mark")
    cursor.execute(statement("end_job"), {"attempt_id": attempt_id, "watermark": watermark, "too_late": too_late})
    ended = cursor.rowcount == 1
    if ended:
        failpoint("end.forget")
        cursor.execute(statement("delete_parse_parts"), {"attempt_id": attempt_id, "sink": PARSE})
    return ended


def record_error(cursor: Cursor, attempt_id: int, error: RecordedError) -> bool:
    """Store in the attempt why its job failed; False if the attempt is fenced or sealed, or its job ended."""
    failpoint("job.error")
    cause = {"error": str(error), "error_class": error.error_class, "command": error.command}
    cursor.execute(statement("record_error"), {"attempt_id": attempt_id, **cause})
    return cursor.rowcount == 1


def is_live(cursor: Cursor, attempt_id: int) -> bool | None:
    """Whether the attempt is neither fenced nor sealed, as committed; None if there is no such attempt."""
    failpoint("refused.standing")
    cursor.execute(statement("attempt_is_live"), {"attempt_id": attempt_id})
    row = cursor.fetchone()
    return None if row is None else bool(row[0])


def record_fenced_write(cursor: Cursor, attempt_id: int, backend_pid: int, host: str, what: str) -> None:
    """Record that a write of a session was refused. A repeat for the same session changes nothing."""
    failpoint("refused.record")
    write = {"attempt_id": attempt_id, "backend_pid": backend_pid, "host": host, "what": what}
    cursor.execute(statement("record_fenced_write"), write)


def refuse_rows(cursor: Cursor, attempt_id: int, rows: Sequence[RefusedRow]) -> None:
    """Store rows that staging refused, so that the epoch's next attempt sets their records aside.

    Nothing is stored if the attempt is fenced or sealed, or of a record that it has refused already.
    """
    failpoint("refused.noted")
    cursor.execute(statement("keep_refused_rows"), {"attempt_id": attempt_id, **refused_values(rows)})


def refused_values(rows: Sequence[RefusedRow]) -> dict[str, list[Any]]:
    """The values of ``keep_refused_rows``, by column."""
    places = [row.place or (None, None, None) for row in rows]
    return {
        "sinks": [row.sink for row in rows],
        "topics": [topic for topic, _, _ in places],
        "partitions": [partition for _, partition, _ in places],
        "offsets": [offset for _, _, offset in places],
        "rows": [row.row for row in rows],
        "reasons": [row.reason for row in rows],
    }
