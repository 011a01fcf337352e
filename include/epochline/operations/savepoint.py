"""Keep a pipeline's position and state as a named savepoint, and delete one (C12, C13)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from epochline.coordinator.checks import check_states
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    nothing_else,
    refused,
)
from epochline.ports import Transaction
from epochline.protocol.savepoint import Savepoint


class NamedSavepoint(Parameters):
    """Which savepoint."""

    name: str = Field(
        description="The savepoint's name.", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        json_schema_extra={"argument": True},
    )  # fmt: skip


class MakeSavepoint(DirectAction[NamedSavepoint, None]):
    """Keep heads, watermark and state of the last committed epoch."""

    name = "savepoint"
    help = (
        "Keep where PIPELINE stands now under NAME, with a copy of its state, until somebody deletes it. `restore` puts"
        " everything back to it, and a new pipeline can begin from it."
    )
    parameters = NamedSavepoint

    def describe(self, tx: Transaction, subject: Subject, parameters: NamedSavepoint, seen: None) -> ActionPreview:
        declared, _ = subject.declaration()
        if tx.savepoints.find(subject.name, parameters.name) is not None:
            return refused(
                f"{subject.name} has a savepoint {parameters.name} already; delete it first, or take another name."
            )
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            # The epoch's commit waits for the copies, so that heads and state match.
            tx.epochs.lock(unfinished.pipeline, unfinished.epoch_id)
        standing = tx.savepoints.standing(declared, parameters.name, "nobody", "preview")
        if standing is None:
            return refused(f"no epoch of {subject.name} was committed yet; there is nothing to keep.")
        check_states(tx, declared)
        states = tx.states.standings(declared)
        lines = [f"{subject.name} stands after epoch {standing.epoch_id}"]
        lines += [f"{head.tp}: head {head.next_offset}" for head in standing.heads]
        lines += [f"{table}: copied, {one.now}" for table, one in states.items()]
        lines += [f"restore would be refused: {reason}" for reason in _obstacles(tx, subject)]
        return ActionPreview(lines=lines, before={}, after=recorded_savepoint(standing), epoch_id=standing.epoch_id)

    def change(
        self, tx: Transaction, subject: Subject, parameters: NamedSavepoint, seen: None, request: Request
    ) -> Afterwards:
        declared, _ = subject.declaration()
        standing = tx.savepoints.standing(declared, parameters.name, request.actor, request.reason)
        if standing is not None:
            tx.savepoints.keep(standing, declared)
        return nothing_else(f"savepoint {parameters.name} of {subject.name} is kept")


class DeleteSavepoint(DirectAction[NamedSavepoint, None]):
    """Drop a savepoint and its copies."""

    name = "delete-savepoint"
    help = "Delete the savepoint NAME of PIPELINE, with its copy of the state. Nothing else changes."
    parameters = NamedSavepoint

    def describe(self, tx: Transaction, subject: Subject, parameters: NamedSavepoint, seen: None) -> ActionPreview:
        found = tx.savepoints.find(subject.name, parameters.name)
        if found is None:
            return refused(missing(tx, subject.name, parameters.name))
        lines = [
            f"{found}, made by {found.made_by} at {found.made_at:%Y-%m-%d %H:%M:%S %Z} ({found.reason}), is deleted"
        ]
        return ActionPreview(lines=lines, before=recorded_savepoint(found), after={}, epoch_id=None)

    def change(
        self, tx: Transaction, subject: Subject, parameters: NamedSavepoint, seen: None, request: Request
    ) -> Afterwards:
        tx.savepoints.delete(subject.name, parameters.name)
        return nothing_else(f"savepoint {parameters.name} of {subject.name} is gone")


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
    there = ", ".join(one.name for one in tx.savepoints.of(pipeline)) or "none"
    return f"{pipeline} has no savepoint {name}; there are: {there}."


def _obstacles(tx: Transaction, subject: Subject) -> list[str]:
    """Why a later restore would be refused: sinks without before-images."""
    declared, _ = subject.declaration()
    kept = [f"{sink} takes back nothing of what it was given" for sink in declared.post_commit_sinks]
    return kept + [
        f"{sink} has mode {sink.mode} and keeps no before_images"
        for sink in declared.targets
        if sink.mode in ("upsert", "add") and not sink.before_images
    ]
