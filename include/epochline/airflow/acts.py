"""The actions that pages offer: their forms and their previews.

The DAG of an action makes the preview again, so that a run that would do something else does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.airflow import previews
from epochline.airflow.previews import Foreseen, Given
from epochline.airflow.reading import Snapshot
from epochline.operations import DAG_ACTIONS, EpochAction
from epochline.operations.runs import Retry
from epochline.protocol.epoch import Approval

Row = Mapping[str, Any]
"""A row of the statement ``act_pipeline``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An input of an action's form."""

    name: str
    title: str
    help: str
    kind: str
    """``checkbox``, ``number`` or ``text``."""
    least: int
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action that pages offer."""

    name: str
    title: str
    preview: Callable[[Snapshot, str, Row, Given], Foreseen]
    applies: Callable[[Row], bool]
    """Whether the action has an effect on a pipeline, by its row of the statement ``act_pipeline``."""
    danger: str = ""
    """What the action destroys; empty if it destroys nothing."""
    needs_runs: bool = False
    """Whether a paused or dropped pipeline refuses the action."""
    hidden: frozenset[str] = frozenset()
    implied: Mapping[str, str] = field(default_factory=dict)
    """Parameters that hold if a form chooses nothing. They have no input."""

    @property
    def help(self) -> str:
        """What the action does, in the words of the command line."""
        return DAG_ACTIONS[self.name].help

    @property
    def starts_runs(self) -> bool:
        """Whether the action's DAG starts runs of the pipeline's own DAG."""
        return isinstance(DAG_ACTIONS[self.name], EpochAction | Retry)

    @property
    def fields(self) -> Sequence[Field]:
        """The inputs of the action's form, from its parameters."""
        return [
            Field(
                name=name, title=name.replace("_", " ").capitalize(), help=field.description or "",
                kind="checkbox" if field.annotation is bool else "text" if "str" in str(field.annotation) else "number",
                least=next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), 0),
                required=field.is_required(),
            )
            for name, field in DAG_ACTIONS[self.name].parameters.model_fields.items()
            if name not in self.hidden and name not in self.implied
        ]  # fmt: skip

    def is_complete(self, given: Given) -> bool:
        """Whether enough is given for a preview."""
        required = {field.name for field in self.fields if field.required}
        return required <= set(given) and bool(given or not self.fields)

    def parse(self, given: Mapping[str, str]) -> Given:
        """The parameters of a filled-in form, refused as by `Action.parse`. A checkbox alone chooses nothing."""
        names = {field.name for field in self.fields} | set(self.implied)
        filled = {name: value for name, value in given.items() if name in names and value != ""}
        if not any(field.name in filled for field in self.fields if field.kind != "checkbox"):
            filled = {**self.implied, **filled}
        if not self.is_complete(filled):
            return filled
        parsed: dict[str, Any] = DAG_ACTIONS[self.name].parse(filled).model_dump(mode="json", exclude_defaults=True)
        return parsed

    def foresee(self, ledger: Snapshot, pipeline: str, given: Given) -> Foreseen:
        """What the action would do now."""
        rows = ledger.ask("act_pipeline", pipeline=pipeline).rows
        if not rows:
            return Foreseen(refusal=f"The ledger knows no pipeline {pipeline}.")
        if self.needs_runs and (stands := previews.stands(pipeline, rows[0])):
            return Foreseen(refusal=stands)
        return self.preview(ledger, pipeline, rows[0], given)


def _runs(row: Row) -> bool:
    return row["paused_at"] is None and row["dropped_at"] is None


ACTS: Mapping[str, Act] = {
    act.name: act
    for act in (
        Act(
            name="retry", title="Retry", preview=previews.retry, needs_runs=True,
            applies=lambda row: _runs(row)
            and (row["unfinished_state"] != "PLANNED" or row["lease_expired"])
            and row["unfinished_approval"] != Approval.AWAITED,
        ),
        Act(name="pause", title="Pause", preview=previews.pause, applies=_runs, needs_runs=True),
        Act(
            name="resume", title="Resume", preview=previews.resume,
            applies=lambda row: row["paused_at"] is not None and row["dropped_at"] is None,
        ),
        Act(
            name="approve", title="Approve an epoch", preview=previews.approve, hidden=frozenset({"awaited"}),
            danger="makes rows visible that are outside the bounds",
            applies=lambda row: row["unfinished_approval"] == Approval.AWAITED,
        ),
        Act(
            name="abort", title="Abort an epoch", preview=previews.abort, hidden=frozenset({"awaited"}),
            danger="discards what is staged",
            applies=lambda row: row["unfinished_epoch"] is not None,
        ),
        Act(
            name="requeue", title="Requeue records", preview=previews.requeue, implied={"everything": "true"},
            applies=lambda row: row["has_quarantined"],
        ),
        Act(
            name="publish", title="Publish again", preview=previews.publish,
            applies=lambda row: bool(row["due"]),
        ),
        Act(
            name="savepoint", title="Make a savepoint", preview=previews.savepoint,
            applies=lambda row: row["committed_epoch"] is not None and row["dropped_at"] is None,
        ),
        # A new pipeline from another one's savepoint has no page yet: the command line makes it.
        Act(
            name="restore", title="Restore a savepoint", preview=previews.restore, hidden=frozenset({"of"}),
            danger="takes rows out of the targets",
            applies=lambda row: row["has_savepoints"] and row["unfinished_epoch"] is None,
        ),
        Act(
            name="extend-back", title="Extend back", preview=previews.extend_back, needs_runs=True,
            applies=lambda row: _runs(row) and bool(row["older_records"]),
        ),
        # Pages do not ask Kafka, and only Kafka's batches show a hole: the command line declares holes.
        Act(
            name="declare-loss", title="Declare loss", preview=previews.declare_loss, hidden=frozenset({"holes"}),
            danger="cannot be undone",
            applies=lambda row: bool(row["unread_deleted"]) and row["unfinished_epoch"] is None,
        ),
    )
}  # fmt: skip
"""By their names in commands, DAGs and addresses."""
