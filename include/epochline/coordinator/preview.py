"""Preview: what the next epoch would read. Nothing is changed to find out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochline.config.resolve import resolve_settings
from epochline.coordinator.bounds import refuse_awaiting
from epochline.coordinator.checks import check_admitted, check_against_ledger, open_transactions
from epochline.coordinator.evidence import check_known, collect_evidence, guarded_by_sinks_alone
from epochline.coordinator.intent import PlanRequest, closes_windows
from epochline.coordinator.observe import ConsumerGroup, SourceObservation, confirmed, observe_source
from epochline.coordinator.plan import check_log, origins_of
from epochline.coordinator.publish import full_sinks, look_at_sinks
from epochline.coordinator.takeover import shown_ahead
from epochline.declare.pipeline import Pipeline
from epochline.ports import Ledger, OffsetSource, PipelineRow, Transaction
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head, Origin, PlannedRange, TopicPartition
from epochline.protocol.planning import left_unread, next_ranges

_DEFAULTS = PlanRequest()
_Shown = Sequence[tuple[str, Sequence[Head]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What the next epoch would read. Nothing was changed to find out."""

    unfinished: Epoch | None
    origins: tuple[Origin, ...]
    heads: tuple[Head, ...]
    ranges: tuple[PlannedRange, ...]
    backlog: Mapping[TopicPartition, int]
    idle: bool
    """Whether an epoch that reads nothing would close windows."""
    notes: tuple[str, ...]


def preview(ledger: Ledger, source: OffsetSource, pipeline: Pipeline, request: PlanRequest = _DEFAULTS) -> PlanPreview:
    """Say what the next epoch would read, with the same checks and errors as `plan`; change and pause nothing.

    What only a write can check is left to the run: whether a store of files keeps the first of two manifest entries,
    and whether this user may create the control topic if it is missing. Lease, interval and note of the request do not
    matter.

    Raises:
        EpochAwaitsApprovalError: a sealed epoch waits for an approval.
    """
    with ledger.transaction() as tx:
        check_admitted(tx, pipeline.name)
        last = tx.receipts.last_mirror(pipeline.name)
    evidence, group = collect_evidence(ledger, source, pipeline), ConsumerGroup.observe(source, pipeline, last)
    with ledger.transaction() as tx:
        check_known(tx, pipeline.name, evidence)
        row, heads, shown = _known(tx, pipeline)
        unfinished = tx.epochs.unfinished(pipeline.name)
        if unfinished is not None:
            refuse_awaiting(unfinished)
        tx.targets.inspect(pipeline)
        tx.targets.refuse_foreign(pipeline)
        unfilled = tx.targets.compare(pipeline).notes
        check_against_ledger(tx, pipeline, request.writers)
        idle = closes_windows(tx, pipeline)
    full = full_sinks(ledger, pipeline)
    settings = request.settings or resolve_settings(pipeline)
    looked = [] if full else look_at_sinks(ledger, pipeline, settings.restart, only_read=True)
    with confirmed(source, pipeline):
        group.refuse_older()
        expired = group.refuse_gone()
        observed = observe_source(source, pipeline, row, heads, shown=shown)
        origins, watched, ranges = _upcoming(pipeline, heads, observed, request.record_limit)
    view = observed.view
    ends = {partition.tp: partition.last_stable for partition in view.partitions}
    return PlanPreview(
        unfinished=unfinished,
        origins=origins,
        heads=watched,
        ranges=ranges,
        idle=idle and not ranges and not left_unread(watched, view.partitions, ranges),
        backlog={head.tp: max(0, ends[head.tp] - head.next_offset) for head in watched},
        notes=(
            *guarded_by_sinks_alone(pipeline),
            *looked,
            *open_transactions(view),
            *([expired] if expired else []),
            *full,
            *unfilled,
        ),
    )


def upcoming_ranges(
    ledger: Ledger, source: OffsetSource, pipeline: Pipeline, record_limit: int
) -> tuple[PlannedRange, ...]:
    """The ranges that begin at the heads, also while the pipeline is paused or has no targets yet. Changes nothing.

    All ranges together have at most ``record_limit`` offsets. Errors are those of `plan`.
    """
    with ledger.transaction() as tx:
        row, heads, shown = _known(tx, pipeline)
    observed = observe_source(source, pipeline, row, heads, shown=shown)
    return _upcoming(pipeline, heads, observed, record_limit)[2]


def _known(tx: Transaction, pipeline: Pipeline) -> tuple[PipelineRow, tuple[Head, ...], _Shown]:
    """The pipeline's row, its heads, and what sinks show beyond the heads."""
    row = tx.epochs.pipeline(pipeline.name) or PipelineRow(generation=1, last_epoch_id=0, cluster_id=None)
    heads = tuple(tx.chain.heads(pipeline.name, row.generation))
    return row, heads, shown_ahead(tx.receipts.accepted(pipeline.name), heads)


def _upcoming(
    pipeline: Pipeline, heads: Sequence[Head], observed: SourceObservation, record_limit: int | None
) -> tuple[tuple[Origin, ...], tuple[Head, ...], tuple[PlannedRange, ...]]:
    """The missing origins, all heads that are read, and the next ranges."""
    view = observed.view
    origins = tuple(origins_of(pipeline, heads, view, observed.startup))
    begun = [
        Head(tp=origin.tp, origin=origin.offset, next_offset=origin.offset, leader_epoch=origin.leader_epoch)
        for origin in origins
    ]
    watched = tuple(head for head in (*heads, *begun) if pipeline.source.keeps(head.tp.topic))
    check_log(pipeline.name, watched, observed)
    limit = record_limit or pipeline.source.records_per_epoch
    return origins, watched, tuple(next_ranges(watched, view.partitions, limit=limit))
