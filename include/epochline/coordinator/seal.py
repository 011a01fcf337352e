"""Seal: close staging, prove that it is complete, PLANNED → PRE_COMMITTED."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.coordinator.bounds import verdict_of
from epochline.coordinator.intent import LEASE
from epochline.coordinator.observe import confirmed, former_leaders_ends
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.errors import (
    DataLossError,
    EpochFencedError,
    EpochStateError,
    RecordsRefusedError,
    RowsRefusedError,
    SealRefusedError,
    TargetCodeError,
    TopicMissingError,
)
from epochline.ports import Ledger, Manifest, OffsetSource, Transaction
from epochline.protocol.balances import LogGaps, unbalanced, unclaimed, undeclared
from epochline.protocol.data_loss import check_read
from epochline.protocol.epoch import Attempt, Counts, Epoch, EpochKind, EpochState, Run
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.planning import SourceView
from epochline.protocol.refused import RefusedRow, in_words
from epochline.protocol.staging import DIGEST, StagingTicket

log = logging.getLogger(__name__)

_SHOWN = 10
"""Most holes that a message names."""


def seal(ledger: Ledger, source: OffsetSource, ticket: StagingTicket, run: Run) -> Counts:
    """Declare an attempt's staging complete (pre-commit). Sealing a sealed attempt changes nothing.

    The seal waits for writers in flight. Later writers wait for this transaction and then insert nothing. The source is
    asked after the read whether the log is still the planned one.

    Raises:
        DataLossError: a topic was made again, or a log truncated, since the epoch was planned; or its log has holes.
        EpochFencedError, EpochStateError: another attempt, an abort or a recovery took its place; another run has it.
        SealRefusedError: something is missing or does not balance; the attempt failed.
        RowsRefusedError, TargetCodeError: a target refuses rows and would again, or its own code raised an error.
        OutsideBoundsError, MeasureError: as `verdict_of`.
        RecordsRefusedError: a target refuses records, which the next attempt sets aside.
        OutboxTooLargeError: the epoch has more for a topic than one Kafka transaction may take.
        SourceUnavailableError, SinkError: Kafka does not answer, or an external sink cannot be sealed.
    """
    observed = _observe(ledger, source, ticket)
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(ticket.pipeline, ticket.epoch_id)
        if not epoch.belongs_to(run):
            raise EpochStateError(f"{epoch}: belongs to {epoch.run}; {run} may not seal it. Nothing was changed.")
        attempt = tx.attempts.live(epoch)
        if attempt is None or attempt.number != ticket.attempt:
            raise EpochFencedError(f"{ticket}: was fenced; the epoch is {epoch.state}. Nothing it wrote counts.")
        if epoch.state in (EpochState.PRE_COMMITTED, EpochState.COMMITTED):
            return epoch.counts
        attempt = tx.attempts.lock_attempt(attempt)
        pipeline = tx.epochs.declaration(epoch)
        if not attempt.ended:
            raise SealRefusedError(
                f"{attempt}: the Spark job ended without its end mark, so it did not write everything, whatever its"
                " exit code. Look at the task's log for the reason; a retry stages the same range again."
            )
        manifests = tx.attempts.manifests(attempt)
        problems = _manifest_problems(pipeline, manifests, tx.attempts.part_sums(attempt))
        problems += _row_problems(tx, ticket, manifests)
        seen = tx.attempts.seen(attempt)
        if epoch.kind is EpochKind.REQUEUE:
            problems += unclaimed(tx.quarantine.claims(epoch), seen)
        else:
            problems += unbalanced(
                tx.epochs.ranges(epoch), seen, invisible_allowed=observed.invisible_allowed, counted=observed.counted,
                gaps=observed.gaps,
            )  # fmt: skip
        unsealed = {output.staged_as for output in pipeline.outputs if not output.shown_at_commit}
        problems += [
            f"{name} was not sealed, because the job was still at work"
            for name in sorted(unsealed - set(observed.bodies))
        ]
        if problems:
            raise SealRefusedError(f"{attempt}: staging is not complete: {'; '.join(problems)}. Nothing was sealed.")
        _refuse_holes(tx, epoch, observed.gaps)
        # The trial does what the commit will do.
        tx.targets.allow_time(pipeline.commit_statement_timeout)
        refused = _refused(tx, pipeline, ticket, epoch)
        counts = sum((partition.counts for partition in seen.values()), Counts())
        verdict = None if refused else verdict_of(tx, pipeline, epoch, attempt, ticket, manifests, counts)
        if refused:
            kept = [row for row in refused if row.place is None or pipeline.bad_records == "quarantine"]
            tx.attempts.keep_refused(attempt, kept)
            # A long search kept the lease from being renewed, and the run's next attempt needs it.
            tx.epochs.renew_lease(epoch, attempt.number, LEASE)
        else:
            tx.receipts.keep_sealed(attempt, _with_digests(tx, ticket, observed.bodies))
            tx.attempts.seal(attempt, sum(manifest.rows for manifest in manifests))
            tx.epochs.mark_pre_committed(epoch, counts, seen, verdict)
    if refused:
        raise _refusal(pipeline, attempt, refused)
    log.info(
        "epoch.pre_committed pipeline=%s epoch=%d attempt=%d read=%d passed=%d skipped=%d quarantined=%d",
        ticket.pipeline, ticket.epoch_id, ticket.attempt, counts.read, counts.passed, counts.skipped,
        counts.quarantined,
    )  # fmt: skip
    return counts


def _with_digests(
    tx: Transaction, ticket: StagingTicket, bodies: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Mapping[str, Any]]:
    """What sinks need for their commit, with a digest of each staging table, which the commit compares."""
    digests = {staged.sink: held.digest for staged in ticket.tables if (held := tx.targets.held(staged)) is not None}
    return {**bodies, **{sink: {**bodies.get(sink, {}), DIGEST: digest} for sink, digest in digests.items()}}


def _refuse_holes(tx: Transaction, epoch: Epoch, gaps: Mapping[tuple[str, int], LogGaps]) -> None:
    """Refuse a range with holes that nobody declared lost. To read again gives no more."""
    tps = {(planned.tp.topic, planned.tp.partition): planned.tp for planned in tx.epochs.ranges(epoch)}
    declared = {key: tx.chain.declared_gaps(epoch.pipeline, tps[key]) for key in gaps}
    holes = undeclared(gaps, declared)
    if holes:
        lost = sum(len(hole) for ranges in holes.values() for hole in ranges)
        named = [f"{tps[key]}{hole}" for key, ranges in sorted(holes.items()) for hole in ranges]
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        raise DataLossError(
            f"{epoch}: the log holds nothing at {lost} of its offsets: {', '.join(named[:_SHOWN])}{more}. They are"
            " neither markers nor records of aborted transactions, and the topic is not compacted, so Kafka may have"
            " lost records there. Nothing was sealed, and a repeat gives the same. The command declares these offsets"
            " lost; the next epoch reads past them.",
            f"declare-loss {epoch.pipeline} --holes --reason …",
        )


def _refused(tx: Transaction, pipeline: Pipeline, ticket: StagingTicket, epoch: Epoch) -> Sequence[RefusedRow]:
    """The rows that targets refuse. Tables with rules that only a trial checks are tried together.

    If their code may read other tables, all are tried: it must see what it will see in the commit.
    """
    tables = [(table, ticket.table(table.table)) for table in pipeline.tables]
    prepared = [tx.targets.prepare(pipeline, table, staged, epoch) for table, staged in tables]
    refused = [row for outcome in prepared for row in outcome.refused]
    everything = any(outcome.untried and outcome.reads_others for outcome in prepared)
    untried = [table for table, outcome in zip(tables, prepared, strict=True) if outcome.untried or everything]
    if refused or not untried:
        return refused
    return tx.targets.try_out(pipeline, untried, epoch)


def _refusal(pipeline: Pipeline, attempt: Attempt, refused: Sequence[RefusedRow]) -> SealRefusedError:
    reason = f"{attempt}: refused by a target: {in_words(refused)}. Nothing was sealed."
    kind = TargetCodeError if any(row.raised for row in refused) else RowsRefusedError
    without_record = [row for row in refused if row.place is None]
    if without_record:
        return kind(
            f"{reason} A transform or a sum made the row, so that no record can be set aside."
            f" `epochline quarantine {attempt.pipeline}` shows the row. Correct the transform, or the rule."
        )
    if pipeline.bad_records == "quarantine":
        return RecordsRefusedError(f"{reason} The next attempt sets these records aside in the quarantine.")
    return kind(
        f"{reason} The policy for bad records is 'fail'. Correct the rule or the parse, or declare"
        " bad_records='quarantine'."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceAnswer:
    """What Kafka and the sinks say of an attempt that is about to be sealed.

    ``bodies`` is what post-commit sinks need for their commit, by manifest. ``invisible_allowed`` names topics in
    which offsets without a visible record are expected. ``counted`` has the source's own counts, if it counts.
    ``gaps`` has what the batches of the log say, for ranges in other topics of which offsets gave no record.
    """

    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    invisible_allowed: frozenset[str] = frozenset()
    counted: Mapping[tuple[str, int], int] = field(default_factory=dict)
    gaps: Mapping[tuple[str, int], LogGaps] = field(default_factory=dict)


def _observe(ledger: Ledger, source: OffsetSource, ticket: StagingTicket) -> _SourceAnswer:
    """Ask Kafka and the post-commit sinks, while no transaction is open.

    Only after the attempt's job has ended: its parts no longer change, which the seal checks with the manifests, and
    Kafka's answer holds for everything that was read.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(ticket.pipeline, ticket.epoch_id)
        attempt = tx.attempts.live(epoch)
        pipeline = tx.epochs.declaration(epoch)
        if attempt is None or attempt.number != ticket.attempt or not attempt.ended or attempt.sealed:
            return _SourceAnswer()
        ranges = tx.epochs.ranges(epoch)
        names = {output.name: output.staged_as for output in pipeline.outputs if not output.shown_at_commit}
        parts = {name: tx.attempts.parts(attempt, manifest) for name, manifest in names.items()}
        seen = tx.attempts.seen(attempt)
    allowed = _check_log(source, pipeline, epoch, ranges) if ranges else frozenset()
    counted = source.counted(ranges) if ranges else {}
    received = {key: counts.received for key, counts in seen.items()}
    short = [
        planned
        for planned in ranges
        if planned.tp.topic not in allowed
        and received.get((planned.tp.topic, planned.tp.partition), 0) < len(planned.range)
    ]
    gaps = source.gaps(short) if short else {}
    bodies = {}
    for name, manifest in names.items():
        sink = ledger.sink(pipeline, name)
        bodies[manifest] = sink.seal(ticket.sink_attempt, parts[name])
    return _SourceAnswer(bodies=bodies, invisible_allowed=allowed, counted=counted, gaps=gaps)


def _check_log(
    source: OffsetSource, pipeline: Pipeline, epoch: Epoch, ranges: Sequence[PlannedRange]
) -> frozenset[str]:
    """Compare the planned ranges with Kafka after the read. Returns topics where offsets may have no record."""
    try:
        view = source.look(pipeline.source)
    except TopicMissingError:
        view = SourceView(cluster_id=None, partitions=())
    with confirmed(source, pipeline):
        check_read(epoch, ranges, view.partitions, former_leaders_ends(source, ranges, view))
    return view.invisible_allowed


def _manifest_problems(pipeline: Pipeline, manifests: Sequence[Manifest], parts: Sequence[Manifest]) -> list[str]:
    problems = []
    by_sink = {manifest.sink: manifest for manifest in manifests}
    expected = [*(sink.table for sink in pipeline.written), QUARANTINE]
    problems += [f"{sink} has no manifest" for sink in expected if sink not in by_sink]
    problems += [f"{sink} has a manifest, but is no sink" for sink in by_sink if sink not in expected]
    sums = {part.sink: part for part in parts}
    if len(sums) != len(parts):
        problems.append("a sink was written under two write ids")
    for sink, manifest in by_sink.items():
        part = sums.get(sink)
        written = (part.write_id, part.parts, part.rows) if part else (manifest.write_id, 0, 0)
        if written != (manifest.write_id, manifest.parts, manifest.rows):
            problems.append(
                f"{sink}: the manifest says {manifest.parts} parts with {manifest.rows} rows, the parts say"
                f" {written[1]} with {written[2]}"
            )
    problems += [f"{sink} has parts, but no manifest" for sink in sums if sink not in by_sink]
    return problems


def _row_problems(tx: Transaction, ticket: StagingTicket, manifests: Sequence[Manifest]) -> list[str]:
    stated = {manifest.sink: manifest.rows for manifest in manifests}
    problems = []
    for staged in ticket.tables:
        rows = tx.targets.count(staged)
        if staged.sink in stated and rows != stated[staged.sink]:
            problems.append(f"{staged.sink}: staging holds {rows} rows, the manifest says {stated[staged.sink]}")
    return problems
