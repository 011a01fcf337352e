"""What must hold before a plan is written, each with what to do where it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from epochline.declare.pipeline import Pipeline
from epochline.declare.state import check_state
from epochline.errors import (
    ConfigurationError,
    DataLossError,
    DeclarationError,
    PipelineDroppedError,
    PipelinePausedError,
)
from epochline.ports import MirroredOffset, PipelineRow, Transaction
from epochline.protocol.changes import Effect, as_last_written, changes
from epochline.protocol.data_loss import check_same_log, committed_offsets, held
from epochline.protocol.offsets import Head, PlannedRange
from epochline.protocol.planning import PartitionView, SourceView


def check_admitted(tx: Transaction, pipeline: str) -> None:
    """Refuse a plan for a pipeline that an operator paused or dropped.

    Raises:
        PipelinePausedError, PipelineDroppedError: with who did it, when and why.
    """
    standing = tx.operators.standing(pipeline)
    if standing.dropped is not None:
        raise PipelineDroppedError(
            f"{pipeline}: was dropped {standing.dropped}. Nothing was planned. Its history stays under this name;"
            " declare the pipeline under another one."
        )
    if standing.paused is not None:
        raise PipelinePausedError(
            f"{pipeline}: is paused {standing.paused}. Nothing was planned. `epochline resume {pipeline}` lets it go"
            " on."
        )


def check_changes(tx: Transaction, pipeline: Pipeline) -> None:
    """Refuse a declaration under which the rows that are there would mean something else.

    Raises:
        DeclarationError: a sink's mode or key is not what its rows were last written by, however long ago.
    """
    before = tx.epochs.last_declaration(pipeline.name)
    if before is None:
        return
    now = json.loads(pipeline.stored())
    earlier = (json.loads(one.stored()) for one in tx.epochs.declarations(pipeline.name))
    written = as_last_written(json.loads(before.stored()), earlier, now)
    refused = [one for one in changes(written, now) if one.effect is Effect.REFUSED]
    if refused:
        said = "; ".join(f"{one.field} was {one.before}, is {one.now}: {one.advice}" for one in refused)
        raise DeclarationError(
            f"{pipeline.name}: the declaration changed what cannot change: {said}. Nothing was planned."
        )


def check_states(tx: Transaction, pipeline: Pipeline) -> None:
    """Refuse to go on with state that is not what the last epoch left (S14, INV-2).

    Raises:
        StateError: with what happened to it, and what an operator may do.
    """
    if pipeline.states:
        check_state(pipeline.name, tx.states.standings(pipeline), tx.states.last_committed(pipeline.name))


def is_read(pipeline: Pipeline, head: Head, view: SourceView) -> bool:
    """Whether the declaration still reads the head's topic. By a pattern, a topic that is gone was still read."""
    if pipeline.source.topics:
        return head.tp.topic in pipeline.source.topics
    return True


def check_same_cluster(
    pipeline: Pipeline,
    row: PipelineRow,
    heads: Sequence[Head],
    cluster_id: str | None,
    partitions: Sequence[PartitionView] = (),
) -> None:
    """Offsets belong to the cluster that the first plan noted.

    Raises:
        DataLossError: the connection leads to another one.
    """
    if None in (row.cluster_id, cluster_id) or row.cluster_id == cluster_id:
        return
    there = f", which holds {held(partitions)} of these topics" if partitions else ""
    raise DataLossError(
        f"{pipeline.name}: its offsets, {committed_offsets(heads)} of them committed, belong to Kafka cluster"
        f" {row.cluster_id}, but {pipeline.source.connection} now leads to cluster {cluster_id}{there}. There the same"
        " offsets mean other records. Nothing was planned. Correct the connection; where the topics have moved for"
        f" good, `epochline adopt-topic {pipeline.name} --cluster` goes on there."
    )


def check_cluster(
    tx: Transaction, pipeline: Pipeline, row: PipelineRow, heads: Sequence[Head], view: SourceView
) -> None:
    """Note the cluster in the first plan, and hold every later one against it.

    Raises:
        DataLossError: the connection leads to another one.
    """
    check_same_cluster(pipeline, row, heads, view.cluster_id, view.partitions)
    if row.cluster_id is None and view.cluster_id is not None:
        tx.epochs.remember_cluster(pipeline.name, view.cluster_id)


def check_topics(pipeline: Pipeline, heads: Sequence[Head], view: SourceView) -> None:
    """A topic made again must stop the plan before an origin is written for its new incarnation (trap 10)."""
    named = {one.tp.topic for one in view.partitions}
    again = [head for head in heads if head.tp.topic in named and is_read(pipeline, head, view)]
    ids = {one.tp.topic: one.tp.topic_id for one in view.partitions}
    changed = [head for head in again if ids[head.tp.topic] != head.tp.topic_id]
    if changed:
        check_same_log(pipeline.name, changed, view.partitions)


def check_connections(tx: Transaction, pipeline: Pipeline, writers: int | None) -> None:
    """Hold the number of writers against what PostgreSQL can take.

    Raises:
        ConfigurationError: too few connections are free.
    """
    if writers is None:
        return
    needed, free = writers + 2, tx.targets.free_connections()  # begin to seal, and one for whoever looks
    if free < needed:
        raise ConfigurationError(
            f"{pipeline.name}: this epoch would need {needed} connections to PostgreSQL ({writers} writers), {free} are"
            " free. Nothing was planned. Raise max_connections, or give Spark fewer cores."
        )


def no_longer_fits(ranges: Sequence[PlannedRange], heads: Sequence[Head], view: SourceView) -> str | None:
    """The first of an epoch's ranges that no longer starts at its head or is gone from Kafka; None if all fit."""
    next_offsets = {head.tp: head.next_offset for head in heads}
    views = {one.tp: one for one in view.partitions}
    for planned in ranges:
        if next_offsets.get(planned.tp) != planned.range.start:
            return f"the head of {planned.tp} is {next_offsets.get(planned.tp)}, not {planned.range.start}"
        now = views.get(planned.tp)
        if now is None or now.leader_epoch != planned.leader_epoch:
            return f"{planned.tp} has another leader epoch, or is gone"
        if now.log_start > planned.range.start or now.last_stable < planned.range.until:
            return f"Kafka no longer holds {planned}"
    return None


def open_transactions(view: SourceView) -> list[str]:
    """Where an open transaction holds records back, and whose it is: reported as such, not as "no data" (trap 13)."""
    return [
        f"{one.tp}: an open transaction holds back offsets [{one.last_stable}, {one.high_watermark}); {_whose(one)}"
        for one in view.partitions
        if one.high_watermark > one.last_stable
    ]


def _whose(partition: PartitionView) -> str:
    if not partition.open_transactions:
        return "the broker does not say whose it is"
    first, *others = partition.open_transactions
    said = f"it began at offset {first.start_offset}, by producer {first.producer_id}"
    if first.transactional_id is not None:
        said += f" of transactional id {first.transactional_id!r}"
    if first.begun_at is not None:
        said += f", at {first.begun_at.isoformat(timespec='seconds')}"
    if first.timeout is not None:
        said += f", with a time-out of {first.timeout.total_seconds():.0f} s"
    if first.transactional_id is None:
        when = f" wrote last at {first.last_write_at.isoformat(timespec='seconds')} and" if first.last_write_at else ""
        said += f", which{when} is known to no coordinator: it will not end by itself"
    return f"{said}; later ones are open: {len(others)}" if others else said


def moved_by_others(heads: Sequence[Head], mirrored: Mapping[tuple[str, int], MirroredOffset]) -> list[str]:
    """Where somebody else than epochline moved the consumer group: reported, because the ledger alone counts."""
    notes = []
    known = {(head.tp.topic, head.tp.partition): head for head in heads}
    for (topic, partition), told in sorted(mirrored.items()):
        head = known.get((topic, partition))
        if told.epoch_id is None and head is not None and told.offset != head.next_offset:
            notes.append(
                f"{topic}-{partition}: somebody moved the consumer group to {told.offset}; the ledger says"
                f" {head.next_offset}, which counts"
            )
    return notes
