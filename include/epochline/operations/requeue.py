"""Requeue: read chosen quarantined records again, in an epoch of their own, exactly once."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from epochline.coordinator.intent import EpochDraft
from epochline.declare.pipeline import Pipeline
from epochline.operations.action import ActionPreview, Case, Parameters, refused
from epochline.operations.epoch_action import EpochAction
from epochline.ports import PipelineRow, Selection, Transaction
from epochline.protocol.epoch import Epoch, EpochKind


class RequeueParameters(Parameters):
    """Which records: those that match every given field."""

    everything: bool = Field(False, description="Read all quarantined records.")
    epoch: int | None = Field(None, ge=1, description="Only records that this epoch quarantined.")
    topic: str | None = Field(None, description="Only records of this topic.")
    partition: int | None = Field(None, ge=0, description="Only records of this partition.")
    offset: int | None = Field(None, ge=0, description="Only this offset (needs topic and partition).")
    like: str | None = Field(None, description="Only records with a reason LIKE this, as in SQL: '%not JSON%'.")
    generation: int | None = Field(None, ge=1, description="Records of this generation; the present one if not given.")
    out_of_order: bool = Field(
        False, description="Allow topics to get old records after newer records with the same key."
    )


class Requeue(EpochAction[RequeueParameters, None]):
    """Read chosen records of PIPELINE's quarantine again with today's parse, in a separate epoch. Each record is
    written once; a record that fails again stays, with the new reason.
    """

    name = "requeue"
    parameters = RequeueParameters

    def describe(self, case: Case[RequeueParameters, None]) -> ActionPreview:
        tx, declared, row, parameters = case.tx, case.declared, case.row, case.parameters
        if row is None or parameters == RequeueParameters(out_of_order=parameters.out_of_order):
            return refused("say which records: by epoch, topic, partition, offset or reason, or --everything.")
        selection = _selection(parameters, row.generation)
        obstacle = _refusing_sink(tx, declared, selection.generation < row.generation, parameters.out_of_order)
        if obstacle is not None:
            return refused(obstacle)
        selected = tx.quarantine.selected(case.pipeline, selection)
        if not selected:
            return refused(f"{case.pipeline}: no record in the quarantine fits, or each was requeued or erased.")
        counts = {f"{topic}-{partition}": records for (topic, partition), records in selected.items()}
        return ActionPreview(
            lines=requeuing(case.pipeline, counts),
            epochs=1,
            before={"quarantined": counts},
            after={"requeued": parameters.model_dump(exclude_none=True) | {"records": sum(counts.values())}},
        )

    def draft(self, case: Case[RequeueParameters, None], row: PipelineRow) -> EpochDraft:
        selection = _selection(case.parameters, row.generation)
        return EpochDraft(
            kind=EpochKind.REQUEUE, write_more=lambda tx, epoch: tx.quarantine.claim_records(epoch, selection)
        )

    def cannot_reopen(self, tx: Transaction, own: Epoch, seen: None) -> str | None:
        if own.kind is not EpochKind.REQUEUE:
            return f"it is no requeue, but {own.kind}"
        return None if tx.quarantine.claims_are_free(own) else "another epoch requeued some of its records"


def requeuing(pipeline: str, counts: Mapping[str, int]) -> Sequence[str]:
    """What a requeue of so many records of each partition does, for page and terminal."""
    total = sum(counts.values())
    return (
        *(f"{partition}: {records} quarantined records are read again" for partition, records in counts.items()),
        f"{total} records of {pipeline} go through today's parse in an epoch of their own; no offset moves",
    )


def _selection(parameters: RequeueParameters, generation: int) -> Selection:
    return Selection(
        generation=parameters.generation or generation,
        epoch_id=parameters.epoch,
        topic=parameters.topic,
        partition=parameters.partition,
        offset=parameters.offset,
        reason=parameters.like,
    )


def _refusing_sink(tx: Transaction, pipeline: Pipeline, superseded: bool, out_of_order: bool) -> str | None:
    """Why a sink cannot take requeued records, which are older than rows that are there; None if all sinks can."""
    keyed = [str(topic) for topic in pipeline.topics if topic.key or isinstance(topic.value, str)]
    if keyed and not out_of_order:
        return (
            f"{', '.join(keyed)}: a requeued record comes after newer ones of its key. A consumer or a compacted topic"
            " that keeps the last one would take an old one for the newest. Where keys do not come twice, or that does"
            " no harm, say --out-of-order"
            " (out_of_order in the conf of a run)."
        )
    if pipeline.states:
        return f"{pipeline.name} keeps state, which later epochs have gone on from: an old record cannot go into it."
    keeps = tx.targets.keeps_order(pipeline)
    for sink in pipeline.targets:
        if sink.mode == "replace":
            return f"{sink} has mode replace: the requeued records would take the place of all its rows."
        if sink.mode == "upsert" and not keeps.get(sink.table, False):
            return (
                f"{sink} keeps no order columns: an old record would replace a newer row. Give it its _ columns, or"
                " declare order_by and keep that."
            )
        if sink.mode == "upsert" and superseded:
            return f"{sink} has mode upsert: records of an earlier generation come before every row of this one."
    return None
