"""Accept state tables and targets that are not as epochs left them."""

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
    """Treat the present state tables and targets as what the last committed epoch left."""

    name = "accept-state"
    help = (
        "Go on with the state and the targets of PIPELINE as they are now, although they are not what the last"
        " committed epoch left. What they held then is not brought back."
    )
    parameters = Parameters

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None) -> ActionPreview:
        declared, _ = subject.declaration()
        last = tx.states.last_committed(subject.name)
        if last is None:
            return refused(f"no epoch of {subject.name} was committed, so no state can be right; empty the tables.")
        standings = tx.states.standings(declared)
        unknown = [table for table, one in standings.items() if one.now is None]
        if unknown:
            return refused(f"no trigger counts what is written to {', '.join(unknown)}; run `epochline migrate` first.")
        lost = tx.targets.lost(declared)
        changed = any(one.now != one.left or one.left_by != last for one in standings.values())
        if not changed and not lost:
            return refused(
                f"state and targets of {subject.name} are what epoch {last} left; there is nothing to accept."
            )
        unfinished = tx.epochs.unfinished(subject.name)
        if changed and unfinished is not None:
            return refused(f"{unfinished} is {unfinished.state} and was made from the state as it was; abort it first.")
        return ActionPreview(
            lines=[
                *(
                    f"{table}: taken for what epoch {last} left: {one.now}"
                    + ("" if one.left is None else f"; epoch {one.left_by} left {one.left}")
                    for table, one in standings.items()
                ),
                *(f"{table} {why}; taken as it is for what epoch {last} left" for table, why in lost.items()),
            ],
            before={**recorded_state({table: one.as_left() for table, one in standings.items()}), **lost},
            after={**recorded_state(standings), **dict.fromkeys(lost)},
            epoch_id=last,
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: None, request: Request
    ) -> Afterwards:
        declared, _ = subject.declaration()
        last = tx.states.last_committed(subject.name)
        if last is not None:
            tx.states.leave(declared, last)
            tx.targets.accept(declared, last)
        return nothing_else(f"{subject.name} goes on with its state and its targets as they are")
