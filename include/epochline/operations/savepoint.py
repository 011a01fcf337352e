"""Keep a pipeline's position and state as a named savepoint, delete one, and go back to one."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from epochline.coordinator.checks import check_states
from epochline.coordinator.commit import undo
from epochline.declare.pipeline import Pipeline
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    Case,
    DirectAction,
    Parameters,
    Request,
    Subject,
    mirrored,
    refuse_older_kafka,
    refused,
)
from epochline.operations.restorable import Logs, logs_of, obstacles, origins, ranges_read, with_rows
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import with_clusters
from epochline.protocol.savepoint import Savepoint


class NamedSavepoint(Parameters):
    """Which savepoint."""

    name: str = Field(
        description="The savepoint's name.", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        json_schema_extra={"argument": True},
    )  # fmt: skip


class MakeSavepoint(DirectAction[NamedSavepoint, None]):
    """Keep the heads of PIPELINE and a copy of its state under NAME, until somebody deletes them. `restore` goes back
    to this savepoint, and a new pipeline can begin from it.
    """

    name = "savepoint"
    parameters = NamedSavepoint

    def describe(self, case: Case[NamedSavepoint, None]) -> ActionPreview:
        tx, declared, pipeline, name = case.tx, case.declared, case.pipeline, case.parameters.name
        if tx.savepoints.find(pipeline, name) is not None:
            return refused(f"{pipeline} has a savepoint {name} already; delete it first, or take another name.")
        unfinished = case.unfinished
        if unfinished is not None:
            # The epoch's commit waits for the copies, so that heads and state match.
            tx.epochs.lock(unfinished.pipeline, unfinished.epoch_id)
        standing = tx.savepoints.standing(declared, name, "nobody", "preview")
        if standing is None:
            return refused(f"no epoch of {pipeline} was committed yet; there is nothing to keep.")
        check_states(tx, declared, read=True)
        states = tx.states.standings(declared)
        lines = standing_at(pipeline, standing.epoch_id, {head.tp: head.next_offset for head in standing.heads})
        lines += [f"{table}: copied, {state.now}" for table, state in states.items()]
        lines += [f"restore would be refused: {reason}" for reason in _keeps_restore_back(declared)]
        return ActionPreview(lines=lines, before={}, after=recorded_savepoint(standing), epoch_id=standing.epoch_id)

    def change(self, case: Case[NamedSavepoint, None], request: Request) -> Afterwards:
        name, savepoints = case.parameters.name, case.tx.savepoints
        standing = savepoints.standing(case.declared, name, request.actor, request.reason)
        if standing is not None:
            savepoints.keep(standing, case.declared)
        return lambda: [f"savepoint {name} of {case.pipeline} is kept"]


class DeleteSavepoint(DirectAction[NamedSavepoint, None]):
    """Delete the savepoint NAME of PIPELINE, with its copy of the state. Nothing else changes."""

    name = "delete-savepoint"
    parameters = NamedSavepoint

    def describe(self, case: Case[NamedSavepoint, None]) -> ActionPreview:
        savepoint = case.tx.savepoints.find(case.pipeline, case.parameters.name)
        if savepoint is None:
            return refused(missing(case.tx, case.pipeline, case.parameters.name))
        lines = [
            f"{savepoint}, made by {savepoint.made_by} at {savepoint.made_at:%Y-%m-%d %H:%M:%S %Z}"
            f" ({savepoint.reason}), is deleted"
        ]
        return ActionPreview(lines=lines, before=recorded_savepoint(savepoint), after={}, epoch_id=None)

    def change(self, case: Case[NamedSavepoint, None], request: Request) -> Afterwards:
        case.tx.savepoints.delete(case.pipeline, case.parameters.name)
        return lambda: [f"savepoint {case.parameters.name} of {case.pipeline} is gone"]


class RestoreParameters(NamedSavepoint):
    """Which savepoint, of which pipeline."""

    of: str | None = Field(None, description="The pipeline that has the savepoint; a new PIPELINE begins from it.")


class Restore(DirectAction[RestoreParameters, Logs]):
    """Restore heads, state and targets of PIPELINE from its savepoint NAME, in one transaction. Later epochs are undone
    and their ranges are read again. With --of OTHER, PIPELINE is new, and begins from OTHER's savepoint with empty
    targets.
    """

    name = "restore"
    parameters = RestoreParameters

    def admit(self, case: Case[RestoreParameters, Logs]) -> None:
        # The ledger does not know a new pipeline yet; `describe` checks for the savepoint.
        if case.parameters.of is None:
            super().admit(case)

    def look(self, subject: Subject, parameters: RestoreParameters) -> Logs:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        if parameters.of is not None:
            return Logs(view=view)
        refuse_older_kafka(subject.ledger, source, declared)
        with subject.ledger.transaction() as tx:
            savepoint = tx.savepoints.find(subject.name, parameters.name)
            undone = [] if savepoint is None else tx.savepoints.later(subject.name, savepoint.epoch_id)
            ranges = ranges_read(tx, subject.name, undone)
        return logs_of(source, view, ranges)

    def describe(self, case: Case[RestoreParameters, Logs]) -> ActionPreview:
        tx, pipeline, unfinished, other = case.tx, case.pipeline, case.unfinished, case.parameters.of
        if unfinished is not None:
            return refused(f"{unfinished} is {unfinished.state}; let {unfinished.run} finish it, or abort it first.")
        savepoint = tx.savepoints.find(other or pipeline, case.parameters.name)
        if savepoint is None:
            return refused(missing(tx, other or pipeline, case.parameters.name))
        row = case.row or PipelineRow(generation=1, last_epoch_id=0, cluster_id=None)
        undone = tx.savepoints.later(pipeline, savepoint.epoch_id) if other is None else []
        reason = next(obstacles(tx, case.declared, savepoint, row, None if other else undone, case.seen), None)
        if reason is not None:
            return refused(reason)
        generation = row.generation + 1 if other is None else row.generation
        which = ""
        if undone:
            which = f"epoch {undone[0]}" if len(undone) == 1 else f"{len(undone)} epochs, {undone[0]} to {undone[-1]}"
        lines = going_back(pipeline, savepoint.pipeline, savepoint.epoch_id, which)
        lines += [f"{head.tp}: goes on at {head.next_offset}" for head in savepoint.heads]
        lines += [f"{state}: put back, {digest}" for state, digest in savepoint.states.items()]
        lines += [
            f"{row.acted_at:%Y-%m-%d %H:%M %Z}, {row.actor} ({row.reason}): values were forgotten since. The savepoint"
            " has none of them; epochs that read their records again write them again, so forget them again"
            for row in tx.operators.actions(savepoint.pipeline)
            if row.action == "forget" and row.acted_at and savepoint.made_at and row.acted_at > savepoint.made_at
        ]
        heads = {str(head.tp): head.next_offset for head in case.heads}
        return ActionPreview(
            lines=lines,
            before={"generation": row.generation, "heads": heads},
            after={"generation": generation, **recorded_savepoint(savepoint), "undone": list(undone)},
        )

    def change(self, case: Case[RestoreParameters, Logs], request: Request) -> Afterwards:
        tx, subject, parameters, declared = case.tx, case.subject, case.parameters, case.declared
        savepoint = tx.savepoints.find(parameters.of or subject.name, parameters.name)
        if savepoint is None:
            raise AssertionError("previewed under the same lock")
        row = tx.epochs.lock_pipeline(subject.name)
        tx.targets.allow_time(declared.commit_statement_timeout)
        tx.targets.claim(declared)
        undone: Sequence[int] = []
        # Nothing was committed under a new name: it begins at the other pipeline's heads.
        begins = {head.tp: head.next_offset for head in savepoint.heads}
        if parameters.of is None:
            undone = tx.savepoints.later(subject.name, savepoint.epoch_id)
            begins = origins(tx, savepoint, row)
            undo(tx, declared, with_rows(tx, subject.name, undone))
            clusters = with_clusters(savepoint.cluster_id, row.cluster_id)
            row = tx.operators.begin_generation(subject.name, clusters)
        elif (clusters := with_clusters(row.cluster_id, savepoint.cluster_id)) is not None:
            tx.epochs.remember_cluster(subject.name, clusters)
        run = Run(dag_id="operator", run_id=f"{request.actor}: {parameters.name}", host=socket.gethostname())
        epoch_id = tx.savepoints.restore(savepoint, declared, row, run, undone, begins)
        tx.savepoints.put_back_state(savepoint, declared, _states(declared, savepoint), epoch_id)
        tx.states.leave(declared, epoch_id)
        tx.targets.account()

        line = f"{subject.name} goes on from {savepoint}, in generation {row.generation}"
        return mirrored(case, line, known=parameters.of is not None)


def standing_at(pipeline: str, epoch_id: int, heads: Mapping[Any, int]) -> list[str]:
    """What a savepoint keeps, for page and terminal, given the head of each partition."""
    return [
        f"the newest committed epoch of {pipeline} is {epoch_id}",
        *(f"{tp}: head {offset}" for tp, offset in heads.items()),
    ]


def going_back(pipeline: str, of: str, epoch_id: int, undone: str) -> list[str]:
    """What a restore does, for page and terminal: ``undone`` says which epochs; empty for none."""
    lines = [f"{pipeline} goes back to where epoch {epoch_id} of {of} left it"]
    return [*lines, f"undone: {undone}; what they wrote leaves the targets"] if undone else lines


def recorded_savepoint(savepoint: Savepoint) -> dict[str, Any]:
    """What an action on a savepoint records, as JSON."""
    return {
        "savepoint": savepoint.name,
        "of": savepoint.pipeline,
        "epoch": savepoint.epoch_id,
        "heads": {str(head.tp): head.next_offset for head in savepoint.heads},
    }


def missing(tx: Transaction, pipeline: str, name: str) -> str:
    """The message for a missing savepoint, with the names of those that exist."""
    there = ", ".join(savepoint.name for savepoint in tx.savepoints.of(pipeline)) or "none"
    return f"{pipeline} has no savepoint {name}; there are: {there}."


def _keeps_restore_back(declared: Pipeline) -> list[str]:
    """Why a later restore would be refused: sinks without before-images."""
    kept = [f"{sink} takes back nothing of what it was given" for sink in declared.post_commit_sinks]
    return kept + [
        f"{sink} has mode {sink.mode} and keeps no before_images"
        for sink in declared.targets
        if sink.mode in ("upsert", "add") and not sink.before_images
    ]


def _states(declared: Pipeline, savepoint: Savepoint) -> dict[str, str]:
    """By state table, the savepoint's state for it: the same name, or by order of names in a new pipeline."""
    tables = sorted(state.table for state in declared.states)
    if set(tables) == set(savepoint.states):
        return {table: table for table in tables}
    return dict(zip(tables, sorted(savepoint.states), strict=True))
