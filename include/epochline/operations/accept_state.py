"""Accept state tables that something other than an epoch has changed."""

from __future__ import annotations

from epochline.declare.state import recorded_state
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


class AcceptState(DirectAction[Parameters, None]):
    """Treat the present content of the state tables as what the last committed epoch left."""

    name = "accept-state"
    help = (
        "Go on with the state of PIPELINE as it is now, although it is not what the last committed epoch left. What it"
        " held then is not brought back."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        declared, _ = subject.declaration()
        if not declared.states:
            return refused(f"{subject.name} declares no state.")
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            return refused(f"{unfinished} is {unfinished.state} and was made from the state as it was; abort it first.")
        last = tx.states.last_committed(subject.name)
        if last is None:
            return refused(f"no epoch of {subject.name} was committed, so no state can be right; empty the tables.")
        standings = tx.states.standings(declared)
        unknown = [table for table, one in standings.items() if one.now is None]
        if unknown:
            return refused(f"no trigger counts what is written to {', '.join(unknown)}; run `epochline migrate` first.")
        if all(one.now == one.left and one.left_by == last for one in standings.values()):
            return refused(f"the state of {subject.name} is what epoch {last} left; there is nothing to accept.")
        return ActionPreview(
            lines=[
                f"{table}: taken for what epoch {last} left: {one.now}"
                + ("" if one.left is None else f"; epoch {one.left_by} left {one.left}")
                for table, one in standings.items()
            ],
            before=recorded_state({table: one.as_left() for table, one in standings.items()}),
            after=recorded_state(standings),
            epoch_id=last,
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        declared, _ = subject.declaration()
        last = tx.states.last_committed(subject.name)
        if last is not None:
            tx.states.leave(declared, last)
        return nothing_else(f"{subject.name} goes on with its state as it is")
