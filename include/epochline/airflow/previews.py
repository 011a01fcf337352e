"""What each action would do now, as far as the ledger knows: views are read, Kafka is not asked.

Where page and terminal say the same, the sentence comes from one function of `epochline.operations`. Each function here
takes one moment of the ledger, a pipeline with its row of the statement ``act_pipeline``, and the parameters of the
action as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.airflow.reading import Snapshot
from epochline.operations.approve import approving
from epochline.operations.declare_loss import declaring_loss
from epochline.operations.extend_back import committing_back
from epochline.operations.requeue import requeuing
from epochline.operations.runs import aborting, pausing, resuming, retrying, showing, waiting, working_on
from epochline.operations.savepoint import going_back, standing_at
from epochline.ports import Decision
from epochline.protocol.epoch import Approval, EpochState
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.quantities import counted

Given = Mapping[str, Any]
"""The parameters of an action as JSON, without those that are not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What an action would do.

    Args:
        lines: what changes and what does not, for people.
        state: what the lines depend on, as JSON. The action is refused if it has changed meanwhile.
        refusal: why the action would be refused; None if it would not.
    """

    lines: Sequence[str] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None


def abort(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """End an epoch by hand."""
    rows = ledger.ask("act_epoch", pipeline=pipeline, epoch_id=given["epoch"]).rows
    if not rows:
        return Foreseen(refusal=f"The ledger has no epoch {given['epoch']} of {pipeline}.")
    epoch = rows[0]
    if epoch["state"] == "COMMITTED":
        written = f"Epoch {given['epoch']} is committed with {epoch['rows_written']} rows."
        return Foreseen(refusal=f"{written} A committed epoch stays.")
    approval = {} if epoch["approval"] is None else {"approval": epoch["approval"]}
    return Foreseen(
        lines=aborting(
            f"epoch {given['epoch']} of {pipeline}", EpochState(epoch["state"]), f"run {epoch['run_id']}",
            attempt=epoch["attempt"], offsets=epoch["offsets"], rows=epoch["rows_staged"],
        ),
        state={"epoch": given["epoch"], "state": epoch["state"], "attempt": epoch["attempt"], **approval},
    )  # fmt: skip


def approve(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Let an epoch that is outside its bounds be committed."""
    rows = ledger.ask("act_epoch", pipeline=pipeline, epoch_id=given["epoch"]).rows
    if not rows or (rows[0]["state"], rows[0]["approval"]) != (EpochState.PRE_COMMITTED, Approval.AWAITED):
        return Foreseen(refusal=f"Epoch {given['epoch']} of {pipeline} awaits no approval.")
    epoch, attempt, outside = f"epoch {given['epoch']} of {pipeline}", rows[0]["attempt"], rows[0]["outside"]
    return Foreseen(
        lines=approving(epoch, f"run {rows[0]['run_id']}", attempt=attempt, outside=outside),
        state={"epoch": given["epoch"], "attempt": attempt, "outside": outside},
    )


def retry(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Start a run of the pipeline's own DAG."""
    epoch = row["unfinished_epoch"]
    if row["unfinished_state"] == "PLANNED" and not row["lease_expired"]:
        return Foreseen(refusal=working_on(f"epoch {epoch} of {pipeline}", "PLANNED", f"run {row['run_id']}"))
    if row["unfinished_approval"] == Approval.AWAITED:
        return Foreseen(refusal=waiting(f"epoch {epoch} of {pipeline}"))
    state = {"unfinished": epoch, "unfinished_state": row["unfinished_state"], "attempt": row["attempt"]}
    unfinished = None if epoch is None else (f"epoch {epoch} of {pipeline}", row["unfinished_state"])
    return Foreseen(lines=retrying(pipeline, unfinished), state={**state, "aborted": row["aborted_epoch"]})


def requeue(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Read quarantined records again."""
    chosen = {name: given.get(name) for name in ("epoch", "topic", "partition", "offset", "generation")}
    if set(given) <= {"out_of_order"}:
        return Foreseen(refusal="Say which records: by epoch, topic, partition, offset or reason, or everything.")
    # A reader may not compare the reason, so the statement that does is another one.
    if given.get("like") is None:
        rows = ledger.ask("act_quarantine", pipeline=pipeline, **chosen).rows
    else:
        rows = ledger.ask("act_quarantine_like", pipeline=pipeline, **chosen, like=given["like"]).rows
    if not rows:
        return Foreseen(refusal="No record in the quarantine fits, or each was requeued or erased.")
    counts = {_name(record): int(record["records"]) for record in rows}
    return Foreseen(lines=requeuing(pipeline, counts), state={"generation": row["generation"], "quarantined": counts})


def declare_loss(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Go on behind offsets that Kafka deleted unread."""
    if row["unfinished_epoch"] is not None:
        return Foreseen(refusal=f"Epoch {row['unfinished_epoch']} may hold what looks lost; finish or abort it first.")
    partitions = ledger.ask("page_partitions", pipeline=pipeline, epochs=0).rows
    gaps = {_name(partition): partition for partition in partitions if partition["unread_deleted"]}
    if not gaps:
        return Foreseen(refusal="When the last plan asked Kafka, every head lay in its log: nothing is lost.")
    lost = {name: OffsetRange(start=gap["next_offset"], until=gap["log_start"]) for name, gap in gaps.items()}
    return Foreseen(
        lines=(*declaring_loss(pipeline, lost), _as_of(partitions)),
        state={"lost": {name: [offsets.start, offsets.until] for name, offsets in lost.items()}},
    )


def savepoint(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Keep heads and state under a name."""
    if ledger.ask("act_savepoint", pipeline=pipeline, savepoint=given["name"]).rows:
        return Foreseen(refusal=f"{pipeline} has a savepoint of this name already. Take another name.")
    if row["committed_epoch"] is None:
        return Foreseen(refusal="No epoch is committed yet: there is nothing to keep.")
    partitions = ledger.ask("page_partitions", pipeline=pipeline, epochs=0).rows
    heads = {_name(head): head["next_offset"] for head in partitions if head["next_offset"] is not None}
    committed = row["committed_epoch"]
    return Foreseen(lines=standing_at(pipeline, committed, heads), state={"committed": committed})


def restore(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Go back to a savepoint."""
    if row["unfinished_epoch"] is not None:
        return Foreseen(refusal=f"Epoch {row['unfinished_epoch']} is unfinished; let it finish, or abort it first.")
    rows = ledger.ask("act_savepoint", pipeline=pipeline, savepoint=given["name"]).rows
    if not rows:
        return Foreseen(refusal=f"{pipeline} has no savepoint {given['name']}.")
    saved = rows[0]
    undone = f"{counted(saved['undone'], 'epoch')}, {saved['undone_rows'] or 0} rows" if saved["undone"] else ""
    return Foreseen(
        lines=(
            *going_back(pipeline, pipeline, saved["epoch_id"], undone),
            f"the savepoint was made by {saved['made_by']}: {saved['reason']}",
        ),
        state={
            "generation": row["generation"], "savepoint_of_epoch": saved["epoch_id"], "undone": saved["undone"],
            "committed": row["committed_epoch"],
        },
    )  # fmt: skip


def extend_back(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Commit what lies before the origins."""
    to, lines, origins = str(given["to"]), [], {}
    partitions = ledger.ask("page_partitions", pipeline=pipeline, epochs=0).rows
    for partition in partitions:
        name, origin, log_start = _name(partition), partition["origin_offset"], partition["log_start"]
        if origin is None or log_start is None:
            continue
        begin = log_start if to == "earliest" else max(int(to), log_start) if to.isdigit() else None
        if begin is None:
            lines.append(committing_back(name, f"records from {to} to offset {origin}"))
        elif begin < origin:
            lines.append(committing_back(name, f"offsets {OffsetRange(start=begin, until=origin)}"))
        else:
            continue
        origins[name] = origin
    if not origins:
        return Foreseen(refusal=f"Nothing that Kafka holds lies between {to} and the origins.")
    step = f"of at most {given['step']} offsets" if "step" in given else "of the declared size"
    lines += [f"epochs {step}, a run of the DAG {pipeline} for each; heads do not move", _as_of(partitions)]
    return Foreseen(lines=lines, state={"generation": row["generation"], "origins": origins})


def pause(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Plan no epoch."""
    epoch = f"epoch {row['unfinished_epoch']} of {pipeline}"
    unfinished = None if row["unfinished_epoch"] is None else (epoch, row["unfinished_state"], f"run {row['run_id']}")
    return Foreseen(lines=pausing(pipeline, unfinished), state={"paused": False})


def resume(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Plan epochs again."""
    if row["paused_at"] is None or row["dropped_at"] is not None:
        return Foreseen(refusal=f"{pipeline} is not paused.")
    paused = Decision(by=row["paused_by"], at=row["paused_at"], reason=row["paused_reason"])
    return Foreseen(lines=resuming(pipeline, paused), state={"paused_at": row["paused_at"].isoformat()})


def publish(ledger: Snapshot, pipeline: str, row: Mapping[str, Any], given: Given) -> Foreseen:
    """Show committed epochs in sinks that do not show them."""
    due = row["due"] or {}
    if not due:
        return Foreseen(refusal="Every sink shows every committed epoch.")
    return Foreseen(lines=showing(due), state={"due": due})


def stands(pipeline: str, row: Mapping[str, Any]) -> str | None:
    """Why no run of a pipeline plans; None if runs plan."""
    if row["dropped_at"] is not None:
        return f"{row['dropped_by']} dropped {pipeline}: {row['dropped_reason']}"
    if row["paused_at"] is not None:
        return f"{row['paused_by']} paused {pipeline}: {row['paused_reason']}"
    return None


def _name(partition: Mapping[str, Any]) -> str:
    return f"{partition['topic']}-{partition['partition']}"


def _as_of(partitions: Sequence[Mapping[str, Any]]) -> str:
    """When Kafka was asked where the logs begin. The action asks again, and refuses if more is gone."""
    observed_at = min(partition["observed_at"] for partition in partitions if partition["observed_at"] is not None)
    return f"A plan asked Kafka where its logs begin at {observed_at:%Y-%m-%d %H:%M:%S} UTC. The action asks again."
