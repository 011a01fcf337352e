"""Pause a pipeline, and resume it."""

from __future__ import annotations

from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    nothing_else,
    refused,
    was_dropped,
)
from epochline.ports import Transaction


class Pause(DirectAction[Parameters, None]):
    """Stop planning epochs until `Resume`."""

    name = "pause"
    help = (
        "Plan no epoch of PIPELINE until it is resumed; its runs end as skipped. What is planned already goes on, and"
        " what is pre-committed may still be committed."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        standing = tx.operators.standing(subject.name)
        if standing.dropped is not None:
            return was_dropped(subject.name, standing.dropped)
        if standing.paused is not None:
            return refused(f"{subject.name} is paused already, {standing.paused}.")
        lines = [f"no epoch of {subject.name} is planned from now on; its runs end as skipped"]
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            lines.append(f"{unfinished} is {unfinished.state} and may still be committed by {unfinished.run}")
        return ActionPreview(lines=lines, before={"paused": False}, after={"paused": True})

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        tx.operators.pause(subject.name, request.actor, request.reason)
        return nothing_else(f"{subject.name} is paused. To go on, run `epochline resume {subject.name} --reason …`")


class Resume(DirectAction[Parameters, None]):
    """Undo `Pause`."""

    name = "resume"
    help = "Let epochs of PIPELINE be planned again."
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        paused = tx.operators.standing(subject.name).paused
        if paused is None:
            return refused(f"{subject.name} is not paused.")
        return ActionPreview(
            lines=(f"{subject.name} was paused {paused}; its next run plans again, from where it stopped",),
            before={"paused": True, "paused_by": paused.by, "paused_reason": paused.reason},
            after={"paused": False},
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        tx.operators.resume(subject.name)
        return nothing_else(f"{subject.name} goes on with its next run")
