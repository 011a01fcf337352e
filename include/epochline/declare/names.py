"""Makes and parses derived names. All stay within 63 bytes, where PostgreSQL cuts identifiers."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

MAX_IDENTIFIER_BYTES = 63
QUARANTINE = "_quarantine"
"""The quarantine's name among sinks: it is staged, counted and committed like a sink."""

OWNER, WRITER, READER = "epochline_owner", "epochline_writer", "epochline_reader"
INSPECTOR = "epochline_inspector"
"""Roles of least privilege, created by the ledger's migration. None of them can log in."""

OUTBOX = "epochline_outbox"

FOLLOWED = "epochline_follow_state"
"""Prefix of the names of a state table's triggers. They refuse no row, so the seal does not probe them."""

ORDER = "_order_"


def ledger_prefix(source: str) -> str:
    """Prefix of the topics of one of several sources in the ledger; empty for a single source, which has no name."""
    return f"{source}/" if source else ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def staging_table(pipeline: str, sink: str, epoch_id: int, attempt: int) -> str:
    """Name of the staging table of one attempt and sink: a readable hint, and a digest that makes it unique."""
    hint = re.sub(r"[^a-z0-9_]", "_", sink.rsplit(".", 1)[-1].lower())[:20]
    return f"stg_{hint}_{_digest(pipeline, sink)}_e{epoch_id}_a{attempt}"


def outbox_table(pipeline: str, topic: str) -> str:
    """Name of the table in ``epochline_outbox`` that holds a topic's unsent records."""
    hint = re.sub(r"[^a-z0-9_]", "_", topic.lower())[:40]
    return f"{hint}_{_digest(pipeline, topic)}"


def deleted_keys_table(pipeline: str, sink: str) -> str:
    """Name of the table in ``epochline`` that keeps the keys (and their order) deleted from an upsert target."""
    return f"deleted_{_digest(pipeline, sink)}"


def savepoint_table(pipeline: str, savepoint: str, state: str) -> str:
    """Name of the table in ``epochline`` that holds a savepoint's copy of a state table."""
    return f"savepoint_{_digest(pipeline, savepoint, state)}"


def image_table(pipeline: str, sink: str, epoch_id: int) -> str:
    """Name of the table in ``epochline`` that keeps the before-images of an epoch in a target."""
    return f"before_{_digest(pipeline, sink)}_e{epoch_id}"


def consumer_group(pipeline: str) -> str:
    """Name of the consumer group that mirrors a pipeline's heads."""
    return f"epochline.{pipeline}"


def order_column(column: str) -> str:
    """Name of the target column that keeps the order value of the newest row of a key."""
    name = f"{ORDER}{column}"
    return name if len(name.encode()) <= MAX_IDENTIFIER_BYTES else f"{ORDER}{_digest(column)}"


def pipeline_uri(pipeline: str) -> str:
    """The name of the asset alias by which a pipeline's DAG announces its epochs."""
    return f"epochline://{pipeline}"


def sink_uri(pipeline: str, sink: str) -> str:
    """The URI of the asset that stands for a sink of a pipeline; characters that no path may hold are encoded."""
    return f"{pipeline_uri(pipeline)}/{quote(sink, safe=':')}"


def split_table(table: str) -> tuple[str, str]:
    """Split ``schema.table`` at the first dot; ``table`` alone is in ``public``."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("public", schema)
