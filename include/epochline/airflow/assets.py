"""Asset events: one per committed epoch and sink, so that DAGs can be scheduled on what a pipeline wrote.

Airflow records a task's events in the transaction that marks the task as success. A task that is lost before that
emits no event, and neither does a task that is marked as success by hand. So an epoch is announced again until its
event is found in Airflow (`epochline.coordinator.announce`).
"""

import logging
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

from epochline.airflow.connections import run_of
from epochline.declare.names import pipeline_uri, sink_uri
from epochline.declare.pipeline import Pipeline
from epochline.ports import AnnouncedReceipt, Ledger

log = logging.getLogger(__name__)

NEWEST_EVENTS = 500
"""How many events of a pipeline are searched. An older event is emitted again and is then among them."""


def sink_asset(pipeline: str, sink: str) -> Asset:
    """The asset that a DAG is scheduled on to run after epochs of a pipeline: ``epochline://PIPELINE/SINK``.

    Args:
        pipeline: its name.
        sink: as ``epochline.receipts`` names it: ``orders`` (a table), ``kafka:topic``, ``files:/path``. Characters
            that a path may not hold are percent-encoded.
    """
    return Asset(sink_uri(pipeline, sink))


def events_of(pipeline: Pipeline) -> AssetAlias:
    """Inlet and outlet of an announcing task. An asset emits one event per task, an alias one per epoch and sink."""
    return AssetAlias(pipeline_uri(pipeline.name))


def announce_to_airflow(ledger: Ledger, pipeline: Pipeline, context: Context) -> int:
    """Let this task emit an event per epoch and sink that Airflow has not recorded yet; return how many.

    A failure is logged and raises nothing, because the epoch is committed: the next announcing task emits the events.
    """
    from epochline.coordinator import announce

    alias = events_of(pipeline)

    def acknowledged(unannounced: Sequence[AnnouncedReceipt]) -> Sequence[AnnouncedReceipt]:
        newest = context["inlet_events"][alias].ascending(False).limit(NEWEST_EVENTS)
        recorded = [event.extra for event in newest]
        return [receipt for receipt in unannounced if extra_of(receipt) in recorded]

    try:
        announced = announce(ledger, pipeline.name, run_of(context), acknowledged=acknowledged)
        events = context["outlet_events"][alias]
        for receipt in announced:
            events.add(sink_asset(pipeline.name, receipt.sink), extra=extra_of(receipt))
    except Exception as error:
        log.warning(
            "epochs.not_announced pipeline=%s reason=%s: %s; the next run announces them",
            pipeline.name, type(error).__name__, error,
        )  # fmt: skip
        return 0
    return len(announced)


def extra_of(receipt: AnnouncedReceipt) -> dict[str, Any]:
    """The extra of an epoch's event, as JSON; ``offsets`` are ``[start, until)`` by topic and partition.

    Together the fields tell the epoch from one with the same number in a ledger that was restored since.
    """
    return {
        "epoch_id": receipt.epoch_id,
        "sink": receipt.sink,
        "rows": receipt.rows,
        "shown_at": receipt.shown_at.astimezone(UTC).isoformat(),
        "offsets": receipt.offsets,
    }
