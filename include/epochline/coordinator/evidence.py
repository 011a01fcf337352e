"""Evidence: compare what Kafka and the sinks show with the ledger before anything is committed (INV-8).

A ledger that went back in time, as from a backup, would commit records again that are shown already. The consumer group
and the sinks keep the token of each attempt that they show. Tokens are unique, so the ledger is asked for the token.
Its epoch numbers prove nothing: a ledger that went back uses them again.

A sink that is down shows nothing, and a leader that is cut off from the other brokers may hide the newest marker: to
mark the end of the control topic would cost each plan a write. Then the ledger goes on, and still nothing is shown
twice: the publisher asks again behind its mark, a folder refuses such rows, and `accept-ledger` refuses such a ledger.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from epochline.coordinator.checks import check_admitted
from epochline.coordinator.observe import ConsumerGroup
from epochline.coordinator.pacing import pause
from epochline.declare.external import Files
from epochline.declare.names import consumer_group
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import KafkaTopic
from epochline.errors import (
    KafkaBehindError,
    LedgerBehindError,
    SinkError,
    SinkUnavailableError,
)
from epochline.ports import PAUSE_BEHIND, Accepted, Ledger, OffsetSource, Transaction
from epochline.protocol.epoch import EpochState
from epochline.protocol.offsets import reached_of
from epochline.protocol.sink import Committable, Inspectable, Rechecked, ShownEpoch

log = logging.getLogger(__name__)

Evidence = Sequence[Accepted]
"""The newest epoch of the pipeline that each consumer group and sink shows."""


def collect_evidence(ledger: Ledger, source: OffsetSource, pipeline: Pipeline) -> Evidence:
    """Ask the consumer group, the declared sinks, and the sinks of an unfinished epoch of another declaration.

    Raises:
        SourceUnavailableError: Kafka does not answer. Nothing may be committed until it does.
        SinkError: a sink cannot say what it shows.
    """
    with ledger.transaction() as tx:
        unfinished = tx.epochs.unfinished(pipeline.name)
        left = None if unfinished is None else tx.epochs.declaration(unfinished)
    declarations = [pipeline] if left is None else [left, pipeline]
    return _collect(ledger, source, declarations)


def collect_for_commit(ledger: Ledger, source: OffsetSource, pipeline: str, epoch_id: int) -> tuple[Pipeline, Evidence]:
    """Ask, as `collect_evidence` and `check_sealed`, the consumer group and the sinks of an epoch.

    Returns:
        The epoch's declaration, and the evidence.
    """
    with ledger.transaction() as tx:
        declared = tx.epochs.declaration(tx.epochs.lock(pipeline, epoch_id))
    evidence = _collect(ledger, source, [declared])
    if declared.external:
        check_sealed(ledger, pipeline, epoch_id)
    return declared, evidence


def _collect(ledger: Ledger, source: OffsetSource, declared: Sequence[Pipeline]) -> Evidence:
    evidence = [*ConsumerGroup.observe(source, declared[-1], last=None).evidence]
    for name, pipeline in {sink.name: each for each in declared for sink in each.post_commit_sinks}.items():
        sink = cast("Inspectable", ledger.sink(pipeline, name))
        if not hasattr(sink, "newest_shown"):
            continue
        try:
            shown = shown_by_sink(ledger, pipeline, name, sink)
        except SinkUnavailableError as error:
            # A sink that is down delays only itself: it checks the ledger before it shows anything.
            log.warning("evidence.missing pipeline=%s sink=%s reason=%s", pipeline.name, name, error)
            continue
        if shown is not None:
            _check_readable(pipeline.name, name, shown)
            evidence.append(Accepted(shown_by=name, shown=shown))
    return evidence


def folders_of(pipeline: Pipeline) -> list[str]:
    """The names of the sinks that are folders of files."""
    return [sink.name for sink in pipeline.external if isinstance(sink, Files)]


def shown_by_sink(ledger: Ledger, pipeline: Pipeline, name: str, sink: Inspectable) -> ShownEpoch | None:
    """The newest epoch that a sink shows. A folder must show what the ledger says that it shows, as topics check it.

    Raises:
        SinkError: another folder has the path: an empty one, as of a disk that is not mounted, or an older copy. Or
            a folder was moved here that has further epochs under its former path.
    """
    folders = folders_of(pipeline)
    if name not in folders:
        return sink.newest_shown(pipeline.name)
    with ledger.transaction() as tx:  # first: what it calls shown must be there
        last = tx.receipts.last_shown(pipeline.name, name)
    shown = sink.newest_shown(pipeline.name)
    there = 0 if shown is None else shown.epoch_id
    if last is not None and there < last:
        raise SinkError(
            f"{name} of {pipeline.name}: the ledger says that epoch {last} is there, and the manifest"
            f" {f'ends with epoch {there}' if there else 'has no entry'}: the folder was moved, its disk is not mounted"
            " here, or an older copy took its place. Nothing was written. Bring the folder back, or declare another"
            " path, which begins with the next epoch."
        )
    if shown is not None and shown.token is not None:
        with ledger.transaction() as tx:
            former = tx.receipts.given_elsewhere(pipeline.name, name, shown.token, folders)
        if former is not None:
            raise SinkError(
                f"{name} of {pipeline.name}: the folder was {former[0]}, which has epochs up to {former[1]}, and the"
                f" manifest here ends with epoch {there}. Readers here would miss epochs. Nothing was written. Move the"
                f" folder back, run `epochline publish {pipeline.name}`, and move it then; or declare a new path."
            )
    return shown


def check_sealed(ledger: Ledger, pipeline: str, epoch_id: int) -> None:
    """Ask the sinks of a sealed epoch whether this machine reaches what was sealed, perhaps on another machine.

    Raises:
        SinkError: a sink lacks sealed rows, which a commit would lose. A sink that is down is only logged.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        attempt = tx.attempts.live(epoch) if epoch.state is EpochState.PRE_COMMITTED else None
        if attempt is None:
            return
        declared = tx.epochs.declaration(epoch)
        sealed = {manifest.sink: manifest for manifest in tx.attempts.manifests(attempt)}
    for name in (external.name for external in declared.external):
        sink, manifest = cast("Rechecked", ledger.sink(declared, name)), sealed.get(name)
        if manifest is None or not hasattr(sink, "check_sealed"):
            continue
        committable = Committable(attempt=attempt.sink_attempt, rows=manifest.rows, body=manifest.body or {})
        try:
            sink.check_sealed(committable)
        except SinkUnavailableError as error:
            log.warning("evidence.missing pipeline=%s sink=%s reason=%s", pipeline, name, error)


def _check_readable(pipeline: str, sink: str, shown: ShownEpoch) -> None:
    try:
        reached_of(shown.reached or ())
    except ValueError as error:
        raise SinkError(f"{sink} of {pipeline}: what it says of epoch {shown.epoch_id} is damaged: {error}") from error


def guarded_by_sinks_alone(pipeline: Pipeline) -> list[str]:
    """A note for a plan without the consumer group's evidence: what still shows that the ledger went back in time."""
    if pipeline.source.mirror:
        return []
    sinks = [
        sink.name
        for sink in pipeline.post_commit_sinks
        if not (isinstance(sink, KafkaTopic) and sink.semantics == "at_least_once")
    ]
    shown = f"only {', '.join(sinks)} can show" if sinks else "nothing outside the ledger shows"
    return [f"no consumer group is written: {shown} whether the ledger went back in time"]


def unknown_to(tx: Transaction, pipeline: str, evidence: Evidence) -> Evidence:
    """The shown epochs that the ledger does not know."""
    row = tx.epochs.pipeline(pipeline)
    last = 0 if row is None else row.last_epoch_id

    def knows(shown: ShownEpoch) -> bool:
        return shown.epoch_id <= last if shown.token is None else tx.receipts.knows(pipeline, shown.token)

    return [accepted for accepted in evidence if not knows(accepted.shown)]


def check_known(tx: Transaction, pipeline: str, evidence: Evidence) -> None:
    """Refuse a ledger that does not know what is shown, as `refuse_unknown`."""
    if unknown := unknown_to(tx, pipeline, evidence):
        row = tx.epochs.pipeline(pipeline)
        refuse_unknown(pipeline, 0 if row is None else row.last_epoch_id, unknown)


def refuse_unknown(pipeline: str, last_epoch_id: int, unknown: Evidence) -> None:
    """Raise `LedgerBehindError` if anything is shown that the ledger does not know."""
    if unknown:
        shown = ", ".join(
            f"{accepted.shown_by} shows epoch {accepted.shown.epoch_id} of generation {accepted.shown.generation}"
            + (f" (token {accepted.shown.token})" if accepted.shown.token else "")
            for accepted in unknown
        )
        raise LedgerBehindError(
            f"{pipeline}: {shown}, which the ledger does not know; its own last epoch is {last_epoch_id}. The ledger"
            " went back in time, as from a backup, or a pipeline of this name in another database works there: then"
            " give this one another name. Nothing is committed before an operator has decided. Bring the newer"
            f" ledger back and run `epochline resume {pipeline} --reason …`. If it is lost, the command shows what it"
            " means to go on with this one, and asks.",
            f"accept-ledger {pipeline} --reason …",
        )


def refuse_behind(ledger: Ledger, pipeline: str, evidence: Evidence) -> None:
    """Refuse as `check_known` and pause the pipeline once, or refuse as `check_admitted` if it is stopped already."""
    with pausing_where_behind(ledger, pipeline), ledger.transaction() as tx:
        if unknown_to(tx, pipeline, evidence):
            check_admitted(tx, pipeline)
        check_known(tx, pipeline, evidence)


@contextmanager
def pausing_where_behind(ledger: Ledger, pipeline: str) -> Iterator[None]:
    """Pause the pipeline if the block finds that the ledger or Kafka went back in time."""
    try:
        yield
    except (LedgerBehindError, KafkaBehindError) as error:
        with ledger.transaction() as tx:
            tx.epochs.lock_pipeline(pipeline)
            pause(tx, pipeline, PAUSE_BEHIND, error.said, command=error.command)
        raise


def shown_by_group(pipeline: str, one: Accepted) -> bool:
    """Whether the consumer group shows the epoch, and not a sink."""
    return one.shown_by == consumer_group(pipeline)
