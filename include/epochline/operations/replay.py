"""Replay: read a committed epoch's exact ranges with today's code, compare, and perhaps replace the epoch.

Committed rows stay until a promotion, which is one transaction: it replaces the old epoch's rows with the replay's.
The ledger keeps both epochs. A replay moves no head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epochline.coordinator.commit import CommitResult, commit_in
from epochline.coordinator.evidence import collect_evidence, pausing_where_behind
from epochline.coordinator.intent import LEASE, EpochDraft, Intent, Plan, PlanRequest, write_epoch
from epochline.coordinator.recover import recover
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError
from epochline.operations.action import ActionPreview, Request, Subject, record, refuse_older_kafka
from epochline.operations.epoch_action import refuse_unfinished
from epochline.operations.restorable import Logs, cut_off_since, logs_of, not_declared, shown_for_good
from epochline.ports import PipelineRow, TableDifference, Transaction
from epochline.protocol.data_loss import cannot_be_read_again
from epochline.protocol.epoch import Epoch, EpochKind, EpochState, Run

_REPLAYED = frozenset({EpochKind.REGULAR, EpochKind.BACKFILL, EpochKind.EXTEND_BACK, EpochKind.REPLAY})
SAMPLES = 10
"""Number of differing rows shown for each table."""


def plan_replay(subject: Subject, epoch_id: int, run: Run, *, writers: int | None = None) -> Plan:
    """Write an epoch that reads the ranges of a committed one. Errors are those of a plan, and these.

    Raises:
        EpochNotFoundError: there is no such epoch.
        ActionRefusedError: the epoch cannot be compared; the message says why.
    """
    declared, source = subject.declaration()
    recover(subject.ledger, source, declared, run, LEASE)
    refuse_older_kafka(subject.ledger, source, declared)
    request = PlanRequest(writers=writers, note=f"replay of epoch {epoch_id}")
    view = source.look(declared.source)
    with subject.ledger.transaction() as tx:
        ranges = tx.epochs.ranges(tx.epochs.lock(subject.name, epoch_id))
    intent = _ReplayIntent(declared, epoch_id, logs_of(source, view, ranges))
    return write_epoch(subject.ledger, declared, run, request, intent, own=None, notes=())


@dataclass(frozen=True, slots=True)
class _ReplayIntent(Intent):
    claims_targets = False  # until it is promoted

    declared: Pipeline
    epoch_id: int
    logs: Logs

    def check(self, tx: Transaction, row: PipelineRow) -> None:
        refuse_unfinished(tx, self.declared.name)

    def draft(self, tx: Transaction, row: PipelineRow) -> EpochDraft:
        replayed = tx.epochs.lock(self.declared.name, self.epoch_id)
        obstacle = _obstacle(tx, self.declared, replayed, self.logs)
        if obstacle is not None:
            raise ActionRefusedError(f"{obstacle} Nothing was changed.")
        return EpochDraft(kind=EpochKind.REPLAY, ranges=tx.epochs.ranges(replayed), replays=self.epoch_id)


def differences(subject: Subject, replay: Epoch) -> Sequence[TableDifference]:
    """How a sealed replay's rows differ from those of the epoch that it replays, sink by sink."""
    declared, _ = subject.declaration()
    with subject.ledger.transaction() as tx:
        attempt = tx.attempts.live(replay)
        if attempt is None or replay.replays is None:
            raise ActionRefusedError(f"{replay}: is no replay that is sealed; there is nothing to compare.")
        ticket = tx.attempts.ticket(attempt, declared, tx.epochs.planned_targets(replay))
        return [
            tx.targets.difference(sink, ticket.table(sink.table), replay.replays, SAMPLES) for sink in declared.targets
        ]


def promote(subject: Subject, replay: Epoch, request: Request) -> CommitResult:
    """Let a sealed replay replace what it replays, and record the operator, in one transaction.

    Raises:
        HeadMovedError: the replayed epoch was undone meanwhile, or a record that it quarantined was requeued.
        EpochStateError: the replay is not sealed, or was aborted.
    """
    declared, source = subject.declaration()
    evidence = collect_evidence(subject.ledger, source, declared)
    with pausing_where_behind(subject.ledger, subject.name), subject.ledger.transaction() as tx:
        result = commit_in(tx, tx.epochs.lock(replay.pipeline, replay.epoch_id), evidence)
        done = ActionPreview(
            lines=(), before={"epoch": replay.replays}, after={"epoch": replay.epoch_id, "replays": replay.replays},
            epoch_id=replay.epoch_id,
        )  # fmt: skip
        record(tx, subject.name, "replay --promote", done, request)
    return result


def _obstacle(tx: Transaction, declared: Pipeline, replayed: Epoch, logs: Logs) -> str | None:
    if replayed.state is not EpochState.COMMITTED:
        return f"{replayed} is {replayed.state}; only what is committed can be replayed."
    if tx.epochs.is_undone(replayed):
        return f"{replayed} was undone, by a restore or by a replay that took its place; its rows are gone."
    if replayed.kind not in _REPLAYED:
        return f"{replayed} is of kind {replayed.kind} and has no range to read again."
    if declared.states:
        return f"{declared.name} keeps state, and what {replayed} found in it is not kept."
    for_good = shown_for_good(declared)
    if for_good is not None:
        return for_good
    for sink in declared.targets:
        if sink.mode != "append" or sink.carried_lineage.keys() < {"_offset", "_epoch"} or sink.aggregated:
            return (
                f"{sink} does not keep each epoch's rows apart (mode {sink.mode}): only rows of append targets with"
                " lineage can be compared and replaced."
            )
        if sink.repeats == "skip":
            return (
                f"{sink} skips repeats of its key: later epochs left rows out because of {replayed}, and a replay could"
                " not bring those back."
            )
    left = not_declared(tx, declared, [replayed.epoch_id])
    if left is not None:
        return left
    erased = tx.erasures.erased(declared.name, [replayed.epoch_id])
    if erased:
        return f"{'; '.join(erased)}. A replay would read it again."
    lost = cannot_be_read_again(logs.ranges, logs.view, logs.ends, logs.counted)
    if lost is not None:
        return f"{lost[0].upper()}{lost[1:]}."
    cut = cut_off_since(tx, replayed)
    return None if cut is None else f"{cut}; its records are gone."
