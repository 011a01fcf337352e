"""What the pages of the quarantine hold. Bytes are shown as text without control characters, and in hex."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from pydantic import BaseModel, ConfigDict

from epochline.airflow.pages.views import MOST_COUNTED, PageFilter
from epochline.airflow.reading import Snapshot, Table
from epochline.protocol.quantities import hex_lines, on_one_line

LISTED_BYTES = 80
MOST_REASONS = 20
SHOWN_BYTES = 64 * 1024
"""A page shows this many bytes of a key or a value, the first ones."""

_Epoch = Annotated[int, Query(ge=1, le=2**63 - 1)]
_Offset = Annotated[int, Query(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, Query(ge=0, le=2**31 - 1)]
# PostgreSQL keeps no text with a NUL.
WITHOUT_NUL = r"^[^\x00]*$"
_Topic = Annotated[str, Query(max_length=1000, pattern=WITHOUT_NUL)]


class Place(BaseModel):
    """Where a record stands, and which epoch set it aside."""

    model_config = ConfigDict(extra="forbid")

    epoch: _Epoch
    topic: _Topic
    partition: _Partition
    offset: _Offset


class QuarantineFilter(PageFilter):
    """Which records a page shows: of an epoch, of a time, of a reason, after a place."""

    epoch: _Epoch | None = None
    reason: Annotated[str | None, Query(max_length=1000, pattern=WITHOUT_NUL)] = None
    since: datetime | None = None
    until: datetime | None = None
    after_epoch: _Epoch | None = None
    after_topic: _Topic | None = None
    after_partition: _Partition | None = None
    after_offset: _Offset | None = None
    size: Annotated[int, Query(ge=1, le=200)] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineView:
    """A page of the quarantine.

    Args:
        total: the records that the filter chooses, counted up to `views.MOST_COUNTED`.
        waiting: those of them that were not requeued.
        reasons: the same records by reason; None without the right to see them.
        after: the place after which the next page begins; None on the last page.
        next_page: the query of the next page.
        requeue: the query of the form that requeues what the filter chooses; None if the form cannot say it.
        refused: rows without a record that targets refused since the last commit; None without the right to see them.
    """

    pipeline: str
    records: Table
    total: int
    waiting: int
    reasons: Table | None
    refused: Table | None
    after: Mapping[str, Any] | None
    next_page: str
    requeue: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """A key, a value or a header: text on one line and lines of hex, of the first bytes."""

    name: str
    size: int
    text: str
    hex: Sequence[str]
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One record. ``requeue`` is the query of the form that requeues it."""

    pipeline: str
    record: Table
    parts: Sequence[Bytes]
    headers: Sequence[Bytes]
    requeue: str


def quarantine_view(
    ledger: Snapshot, pipeline: str, chosen: QuarantineFilter, *, inspect: bool
) -> QuarantineView | None:
    """A page of the quarantine; None if the ledger does not know the pipeline.

    An inspector (``inspect``) also gets reasons and the beginning of values, and may filter by reason.
    """
    if not ledger.ask("act_pipeline", pipeline=pipeline).rows:
        return None
    return records_view(ledger, pipeline, chosen, inspect=inspect)


def records_view(ledger: Snapshot, pipeline: str, chosen: QuarantineFilter, *, inspect: bool) -> QuarantineView:
    """A page of the quarantine of a pipeline that the ledger knows, as `quarantine_view`."""
    conditions = {"pipeline": pipeline, "limit": chosen.size + 1, **chosen.model_dump(exclude={"size", "reason"})}
    if inspect:
        records = ledger.ask("page_quarantine_inspected", **conditions, reason=chosen.reason, most_bytes=LISTED_BYTES)
        records = replace(records, rows=[{**row, "beginning": _beginning(row)} for row in records.rows])
    else:
        records = ledger.ask("page_quarantine", **conditions)
    scope = {
        "pipeline": pipeline,
        "most": MOST_COUNTED,
        **chosen.model_dump(include={"epoch", "since", "until"}),
    }
    reasons = None
    if inspect:
        reasons = ledger.ask("page_quarantine_reasons", **scope, reason=chosen.reason, limit=MOST_REASONS)
        reasons = replace(reasons, rows=[{**row, "like": _like(row["reason"])} for row in reasons.rows])
        total, waiting = next(((row["total"], row["waiting_in_all"]) for row in reasons.rows), (0, 0))
    else:
        [row] = ledger.ask("page_quarantine_total", **scope).rows
        total, waiting = row["records"], row["waiting"]
    rows = records.rows[: chosen.size]
    after = None
    if len(records.rows) > len(rows):
        last = rows[-1]
        after = {f"after_{name}": last["epoch_id" if name == "epoch" else name] for name in Place.model_fields}
    query = chosen.model_dump(mode="json", exclude_defaults=True)
    names = {"epoch": chosen.epoch, "like": chosen.reason if inspect else None}
    parameters = {name: value for name, value in names.items() if value is not None}
    return QuarantineView(
        pipeline=pipeline, records=replace(records, rows=rows), total=total, waiting=waiting, reasons=reasons,
        after=after, refused=ledger.ask("refused_rows", pipeline=pipeline, limit=chosen.size) if inspect else None,
        next_page=urlencode({**query, **(after or {})}),
        requeue=None if chosen.since or chosen.until else urlencode(parameters),
    )  # fmt: skip


def record_view(ledger: Snapshot, pipeline: str, place: Place) -> RecordView | None:
    """One record with its bytes; None if the quarantine has no such record."""
    record = ledger.ask("page_quarantined_record", pipeline=pipeline, **place.model_dump(), most_bytes=SHOWN_BYTES)
    if not record.rows:
        return None
    row = record.rows[0]
    parts = [bytes_of(name, row[name], row[f"{name}_bytes"]) for name in ("key", "value")]
    headers = [
        bytes_of(str(name), None if value is None else base64.b64decode(value)) for name, value in row["headers"] or []
    ]
    chosen = place.model_dump(exclude={"epoch"})
    if not row["is_current"]:
        chosen["generation"] = row["generation"]
    return RecordView(
        pipeline=pipeline, record=record, parts=[part for part in parts if part],
        headers=[header for header in headers if header], requeue=urlencode(chosen),
    )  # fmt: skip


def bytes_of(name: str, content: bytes | memoryview | None, size: int | None = None) -> Bytes:
    """A key, a value or a header as pages show it; ``size`` if the content is the beginning of more bytes."""
    if content is None:
        return Bytes(name=name, size=0, text="none", hex=(), cut=False)
    first = bytes(content)[:SHOWN_BYTES]
    whole = len(content) if size is None else size
    return Bytes(name=name, size=whole, text=on_one_line(first), hex=tuple(hex_lines(first)), cut=whole > len(first))


def _like(reason: str) -> str:
    """A pattern for SQL LIKE that fits the records of a group. An asterisk stands for what differs."""
    escaped = reason.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def _beginning(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return "none"
    first = bytes(row["value"])
    return on_one_line(first) + ("…" if row["value_bytes"] > len(first) else "")
