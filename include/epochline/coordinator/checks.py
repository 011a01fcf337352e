"""Checks before a plan is written, and notes on what it leaves unread. Each error says what to do."""

import json
from collections.abc import Sequence

from epochline.declare.pipeline import Pipeline
from epochline.declare.state import check_state
from epochline.errors import (
    BeforeOriginError,
    ChangeRefusedError,
    ConfigurationError,
    DataLossError,
    PipelineDroppedError,
    PipelinePausedError,
)
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.changes import Effect, as_last_written, changes
from epochline.protocol.data_loss import committed_offsets, held
from epochline.protocol.epoch import Interval
from epochline.protocol.offsets import Head, PlannedRange, belongs_to, moved_clusters, with_clusters
from epochline.protocol.planning import PartitionView, PartOfInterval, SourceView
from epochline.protocol.quantities import duration
from epochline.protocol.standing import way_out_of_pause


def check_admitted(tx: Transaction, pipeline: str) -> None:
    """Raise `PipelinePausedError` or `PipelineDroppedError` if an operator stopped the pipeline."""
    standing = tx.operators.standing(pipeline)
    if standing.dropped is not None:
        raise PipelineDroppedError(
            f"{pipeline}: was dropped {standing.dropped}. Nothing was planned. Its history stays under this name;"
            " declare the pipeline under another one."
        )
    if standing.paused is not None:
        raise PipelinePausedError(
            f"{pipeline}: is paused {standing.paused}. Nothing was planned.",
            way_out_of_pause(pipeline, standing.paused.command),
        )


def check_against_ledger(tx: Transaction, pipeline: Pipeline, writers: int | None) -> None:
    """Check the declaration as `check_changes`, the state as `check_states`, and the connections for ``writers``.

    Raises:
        ConfigurationError: PostgreSQL has too few free connections for so many writers.
    """
    check_changes(tx, pipeline)
    check_states(tx, pipeline)
    if writers is None:
        return
    needed, free = writers + 2, tx.targets.free_connections()  # one for begin to seal, one for people
    if free < needed:
        raise ConfigurationError(
            f"{pipeline.name}: this epoch would need {needed} connections to PostgreSQL ({writers} writers), {free} are"
            " free. Nothing was planned. Raise max_connections, or give Spark fewer cores."
        )


def check_changes(tx: Transaction, pipeline: Pipeline) -> None:
    """Raise `ChangeRefusedError` for a declaration that gives rows another meaning, however old they are."""
    before = tx.epochs.last_declaration(pipeline.name)
    if before is None:
        return
    now = json.loads(pipeline.stored())
    earlier = (json.loads(declaration.stored()) for declaration in tx.epochs.declarations(pipeline.name))
    written = as_last_written(json.loads(before.stored()), earlier, now)
    refused = [change for change in changes(written, now) if change.effect is Effect.REFUSED]
    if refused:
        reasons = "; ".join(f"{change}: {change.advice}" for change in refused)
        raise ChangeRefusedError(
            f"{pipeline.name}: the declaration changed what cannot change: {reasons}. Nothing was planned. Change it"
            " back.",
            f"plan {pipeline.name}",
        )


def check_states(tx: Transaction, pipeline: Pipeline, *, read: bool = False) -> None:
    """Raise `StateError` for state that is not what the last epoch left (INV-2); ``read`` as of `States.standings`."""
    if pipeline.states:
        check_state(pipeline.name, tx.states.standings(pipeline, read=read), tx.states.last_committed(pipeline.name))


def check_same_cluster(
    pipeline: Pipeline,
    row: PipelineRow,
    heads: Sequence[Head],
    cluster_id: str | None,
    partitions: Sequence[PartitionView] = (),
) -> None:
    """Raise `DataLossError` for a cluster other than the one that the first plan of a source recorded."""
    for name, (recorded, now) in sorted(moved_clusters(row.cluster_id, cluster_id).items()):
        own = [head for head in heads if belongs_to(name, head.tp.topic)]
        views = [view for view in partitions if belongs_to(name, view.tp.topic)]
        there = f", which holds {held(views)} of these topics" if views else ""
        whose = f"{pipeline.name}: source {name}:" if name else f"{pipeline.name}:"
        raise DataLossError(
            f"{whose} its offsets, {committed_offsets(own)} of them committed, belong to Kafka cluster {recorded}, but"
            f" {pipeline.inputs[name].source.where} now leads to cluster {now}{there}. There the same offsets mean"
            " other records. Nothing was planned. Correct the connection, unless the topics have moved for good.",
            f"adopt-topic {pipeline.name} --cluster --reason …",
        )


def check_cluster(
    tx: Transaction, pipeline: Pipeline, row: PipelineRow, heads: Sequence[Head], view: SourceView
) -> None:
    """Record the cluster of each source in its first plan, and check it as `check_same_cluster` in every later one."""
    check_same_cluster(pipeline, row, heads, view.cluster_id, view.partitions)
    clusters = with_clusters(row.cluster_id, view.cluster_id)
    if clusters is not None and clusters != row.cluster_id:
        tx.epochs.remember_cluster(pipeline.name, clusters)


def no_longer_fits(ranges: Sequence[PlannedRange], heads: Sequence[Head], view: SourceView) -> str | None:
    """The first of an epoch's ranges that no longer starts at its head or is gone from Kafka; None if all fit."""
    next_offsets = {head.tp: head.next_offset for head in heads}
    views = {partition.tp: partition for partition in view.partitions}
    for planned in ranges:
        if next_offsets.get(planned.tp) != planned.range.start:
            return f"the head of {planned.tp} is {next_offsets.get(planned.tp)}, not {planned.range.start}"
        now = views.get(planned.tp)
        if now is None or now.leader_epoch != planned.leader_epoch:
            return f"{planned.tp} has another leader epoch, or is gone"
        if not now.holds(planned.range):
            return f"the source no longer holds {planned}"
    return None


def report_interval(
    tx: Transaction,
    name: str,
    row: PipelineRow,
    interval: Interval,
    parts: Sequence[PartOfInterval],
    ranges: Sequence[PlannedRange],
) -> tuple[Sequence[str], tuple[int, ...]]:
    """Say what becomes of the interval, given the ranges that the run would read.

    Returns:
        Notes for the run, and the epochs that committed offsets of its interval before.

    Raises:
        BeforeOriginError: the whole interval lies before the origin. A retry does not help.
    """
    outside = [f"{part.tp}{part.before_origin}" for part in parts if part.before_origin is not None]
    covered = [(part.tp, part.committed) for part in parts if part.committed is not None]
    extend = f"extend-back {name} {interval.start.isoformat()} --reason …"
    if outside and not covered and not ranges:
        raise BeforeOriginError(
            f"{name}: the interval {interval} lies before the origin: {', '.join(outside)}. Nothing was planned, and"
            " another try gives the same. The command commits what lies before the origin.",
            extend,
        )
    notes = []
    if outside:
        notes.append(
            f"not covered, because before the origin: {', '.join(outside)}. `epochline {extend}` commits what lies"
            " before the origin."
        )
    read = {planned.tp for planned in ranges}
    early = [f"{part.tp}{part.early}" for part in parts if part.tp in read and part.early is not None]
    if early:
        notes.append(
            f"began before the interval {interval}, because a chain has no gap: {', '.join(early)}"
            " were not committed yet"
        )
    epochs: set[int] = set()
    for tp, offsets in covered:
        ids = tx.chain.epochs_within(name, row.generation, tp, offsets)
        epochs.update(ids)
        by = f", by epoch{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}" if ids else ""
        notes.append(f"{tp}{offsets} is committed already{by}")
    if not ranges and not covered:
        notes.append(f"the interval {interval} holds no record that Kafka still has")
    return notes, tuple(sorted(epochs))


def open_transactions(view: SourceView) -> list[str]:
    """Notes on open transactions that hold records back, so that the plan does not just say "no data"."""
    return [
        f"{partition.tp}: an open transaction holds back offsets [{partition.last_stable}, {partition.high_watermark});"
        f" {_whose(partition)}"
        for partition in view.partitions
        if partition.high_watermark > partition.last_stable
    ]


def _whose(partition: PartitionView) -> str:
    if partition.waits_for is not None:
        return partition.waits_for
    if not partition.open_transactions:
        return "the broker does not say whose it is"
    first, *others = partition.open_transactions
    sentence = f"it began at offset {first.start_offset}, by producer {first.producer_id}"
    if first.transactional_id is not None:
        sentence += f" of transactional id {first.transactional_id!r}"
    if first.begun_at is not None:
        sentence += f", at {first.begun_at.isoformat(timespec='seconds')}"
    if first.timeout is not None:
        sentence += f", with a time-out of {duration(first.timeout.total_seconds())}"
    if first.hangs:
        when = f" wrote last at {first.last_write_at.isoformat(timespec='seconds')} and" if first.last_write_at else ""
        sentence += f", which{when} is known to no coordinator: it will not end by itself"
    return f"{sentence}; later ones are open: {len(others)}" if others else sentence
