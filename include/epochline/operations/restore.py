"""Restore heads, state and targets to a savepoint, in one transaction and a new generation (C12, C13)."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from pydantic import Field

from epochline.coordinator.commit import undo
from epochline.coordinator.mirror import mirror
from epochline.declare.pipeline import Pipeline
from epochline.operations.action import ActionPreview, Afterwards, DirectAction, Request, Subject, known, refused
from epochline.operations.older_kafka import refuse_older_kafka
from epochline.operations.restorable import Logs, logs_of, obstacle, origins, ranges_read, with_rows
from epochline.operations.savepoint import NamedSavepoint, missing, recorded_savepoint
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Run
from epochline.protocol.inputs import with_clusters
from epochline.protocol.savepoint import Savepoint


class RestoreParameters(NamedSavepoint):
    """Which savepoint, of which pipeline."""

    of: str | None = Field(None, description="The pipeline that has the savepoint; a new PIPELINE begins from it.")


class Restore(DirectAction[RestoreParameters, Logs]):
    """Undo every epoch after a savepoint, or begin a new pipeline from one."""

    name = "restore"
    help = (
        "Put PIPELINE back to its savepoint NAME: heads, state and targets in one transaction. The epochs since then"
        " are undone and their ranges are read again. With --of OTHER, PIPELINE is new, and begins from OTHER's"
        " savepoint with empty targets."
    )
    parameters = RestoreParameters

    def admit(self, tx: Transaction, subject: Subject, parameters: RestoreParameters) -> None:
        # The ledger does not know a new pipeline yet; `describe` checks for the savepoint.
        if parameters.of is None:
            known(tx, subject.name)

    def look(self, subject: Subject, parameters: RestoreParameters) -> Logs:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        if parameters.of is not None:
            return Logs(view=view)
        refuse_older_kafka(subject.ledger, source, declared)
        with subject.ledger.transaction() as tx:
            found = tx.savepoints.find(subject.name, parameters.name)
            undone = [] if found is None else tx.savepoints.later(subject.name, found.epoch_id)
            ranges = ranges_read(tx, subject.name, undone)
        return logs_of(source, view, ranges)

    def describe(self, tx: Transaction, subject: Subject, parameters: RestoreParameters, seen: Logs) -> ActionPreview:
        declared, _ = subject.declaration()
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            return refused(f"{unfinished} is {unfinished.state}; let {unfinished.run} finish it, or abort it first.")
        found = tx.savepoints.find(parameters.of or subject.name, parameters.name)
        if found is None:
            return refused(missing(tx, parameters.of or subject.name, parameters.name))
        row = tx.epochs.pipeline(subject.name) or PipelineRow(generation=1, last_epoch_id=0, cluster_id=None)
        undone = tx.savepoints.later(subject.name, found.epoch_id) if parameters.of is None else []
        reason = obstacle(tx, declared, found, row, None if parameters.of else undone, seen)
        if reason is not None:
            return refused(reason)
        generation = row.generation + 1 if parameters.of is None else row.generation
        lines = [f"{subject.name} goes back to where epoch {found.epoch_id} of {found.pipeline} left it"]
        if undone:
            which = f"epoch {undone[0]}" if len(undone) == 1 else f"{len(undone)} epochs, {undone[0]} to {undone[-1]}"
            lines.append(f"undone: {which}; what they wrote leaves the targets")
        lines += [f"{head.tp}: goes on at {head.next_offset}" for head in found.heads]
        lines += [f"{state}: put back, {digest}" for state, digest in found.states.items()]
        heads = {str(head.tp): head.next_offset for head in tx.chain.heads(subject.name, row.generation)}
        return ActionPreview(
            lines=lines,
            before={"generation": row.generation, "heads": heads},
            after={"generation": generation, **recorded_savepoint(found), "undone": list(undone)},
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: RestoreParameters, seen: Logs, request: Request
    ) -> Afterwards:
        declared, source = subject.declaration()
        found = tx.savepoints.find(parameters.of or subject.name, parameters.name)
        if found is None:
            raise AssertionError("previewed under the same lock")
        row = tx.epochs.lock_pipeline(subject.name)
        tx.targets.allow_time(declared.commit_statement_timeout)
        tx.targets.claim(declared)
        undone: Sequence[int] = []
        # Nothing was committed under a new name: it begins at the other pipeline's heads.
        begins = {head.tp: head.next_offset for head in found.heads}
        if parameters.of is None:
            undone = tx.savepoints.later(subject.name, found.epoch_id)
            begins = origins(tx, found, row)
            undo(tx, declared, with_rows(tx, subject.name, undone))
            clusters = with_clusters(found.cluster_id, row.cluster_id)
            row = tx.operators.begin_generation(subject.name, clusters)
        elif (clusters := with_clusters(row.cluster_id, found.cluster_id)) is not None:
            tx.epochs.remember_cluster(subject.name, clusters)
        run = Run(dag_id="operator", run_id=f"{request.actor}: {parameters.name}", host=socket.gethostname())
        epoch_id = tx.savepoints.restore(found, declared, row, run, undone, begins)
        tx.savepoints.put_back_state(found, declared, _states(declared, found), epoch_id)
        tx.states.leave(declared, epoch_id)
        tx.targets.account()

        def show() -> Sequence[str]:
            mirror(subject.ledger, source, declared, known=parameters.of is not None)
            return [f"{subject.name} goes on from {found}, in generation {row.generation}"]

        return show


def _states(declared: Pipeline, found: Savepoint) -> dict[str, str]:
    """By state table, the savepoint's state for it: the same name, or by order of names in a new pipeline."""
    tables = sorted(state.table for state in declared.states)
    if set(tables) == set(found.states):
        return {table: table for table in tables}
    return dict(zip(tables, sorted(found.states), strict=True))
