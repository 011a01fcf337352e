"""Publish: show committed epochs in topics, files and other sinks, by roll-forward.

Any later run continues publishing, including other runs' epochs. Each sink gets its epochs in order. A sink that is
down delays only itself.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from epochline.coordinator.evidence import folders_of, shown_by_sink
from epochline.declare.pipeline import Pipeline
from epochline.declare.settings import WITHOUT_END, RestartStrategy
from epochline.declare.topic import KafkaTopic
from epochline.errors import SinkUnavailableError
from epochline.ports import DueReceipt, Ledger
from epochline.protocol.offsets import stored_reached
from epochline.protocol.quantities import counted, duration
from epochline.protocol.sink import Inspectable, Measured

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An epoch that a sink shows now."""

    epoch_id: int
    sink: str
    rows: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.sink} shows epoch {self.epoch_id}: {counted(self.rows, 'row')} in {duration(self.seconds)}"


def publish(
    ledger: Ledger, pipeline: Pipeline, *, report: Callable[[Published], None] = lambda _: None
) -> Sequence[Published]:
    """Show every committed epoch in every sink that does not show it yet. A repeat after any crash shows nothing twice.

    Each epoch's own declaration says which rows go where; today's has the transaction time-outs. ``report`` is called
    after each epoch and sink.

    Raises:
        SinkUnavailableError: a sink is down, or another process publishes there. The other sinks are served.
        SinkAheadError: a sink shows an epoch that the ledger does not know.
        SinkError: a sink refuses an epoch.
    """
    with ledger.transaction() as tx:
        due = tx.receipts.due(pipeline.name)
    by_sink: dict[str, list[DueReceipt]] = defaultdict(list)
    for receipt in due:
        by_sink[receipt.sink].append(receipt)
    done: list[Published] = []
    failures: list[Exception] = []
    for receipts in by_sink.values():
        try:
            for receipt in receipts:
                done.append(_show(ledger, receipt, pipeline))
                report(done[-1])
        except Exception as error:  # an unforeseen error, too, must not stop other sinks
            reason = f"{type(error).__name__}: {error}"
            log.warning("publish.failed pipeline=%s sink=%s reason=%s", pipeline.name, receipt.sink, reason)
            failures.append(error)
    _raise_first(failures)
    return done


def _show(ledger: Ledger, receipt: DueReceipt, now: Pipeline) -> Published:
    with ledger.transaction() as tx:
        declared = _with_time_outs(tx.epochs.declaration(tx.epochs.lock(receipt.pipeline, receipt.epoch_id)), now)
        tx.receipts.try_to_show(receipt)
        stood = tx.chain.reached(receipt.pipeline, receipt.committable.attempt.generation, receipt.epoch_id)
    committable = replace(receipt.committable, reached=stored_reached(stood))
    sink = ledger.sink(declared, receipt.sink)
    if receipt.sink in folders_of(declared):
        shown_by_sink(ledger, declared, receipt.sink, cast("Inspectable", sink))
    begun = time.monotonic()
    if receipt.tried:
        sink.recover_and_commit(committable)
    else:
        sink.commit(committable)
    seconds = time.monotonic() - begun
    outboxes = {box.topic.name: box.table for box in declared.outboxes}
    topic = cast("Measured", sink)
    measured = topic.sending_seconds() if receipt.sink in outboxes else seconds
    with ledger.transaction() as tx:
        noted = tx.receipts.shown(receipt, measured, outboxes.get(receipt.sink))
        completed = tx.receipts.completed(receipt.pipeline, receipt.epoch_id)
    log.info(
        "epoch.shown pipeline=%s epoch=%d sink=%s rows=%d seconds=%.3f noted=%s",
        receipt.pipeline, receipt.epoch_id, receipt.sink, receipt.committable.rows, seconds, noted,
    )  # fmt: skip
    for declared_sink in declared.post_commit_sinks:
        if declared_sink.name in completed:
            sink = ledger.sink(declared, declared_sink.name)
            sink.notify_complete(completed[declared_sink.name])
    return Published(epoch_id=receipt.epoch_id, sink=receipt.sink, rows=receipt.committable.rows, seconds=seconds)


def _with_time_outs(then: Pipeline, now: Pipeline) -> Pipeline:
    """An epoch's declaration with today's time-outs, so that a time-out that was too short can be corrected."""
    limits = {topic.name: topic.transaction_timeout for topic in now.topics}
    sinks = tuple(
        declared.model_copy(update={"transaction_timeout": limits.get(declared.name, declared.transaction_timeout)})
        if isinstance(declared, KafkaTopic)
        else declared
        for declared in then.sinks
    )
    return then.model_copy(update={"sinks": sinks})


def _raise_first(failures: Sequence[Exception]) -> None:
    """Raise the first failure that a retry does not fix, else the first one. Its notes are those of other sinks."""
    lasting = [error for error in failures if not getattr(error, "retryable", False)]
    for first in (*lasting, *failures):
        for other in failures:
            if other is not first:
                first.add_note(str(other))
        raise first


def look_at_sinks(
    ledger: Ledger, pipeline: Pipeline, restart: RestartStrategy, *, only_read: bool = False
) -> list[str]:
    """Ask every sink whether it would show an epoch. Returns notes on sinks that are down or waive a guarantee.

    A transaction lives within one try of publish. If the broker ends it while the strategy waits, the next try
    sends the epoch again. So a time-out shorter than the strategy's waits loses nothing and is only noted.

    With ``only_read``, nothing is made in a sink, and nothing is checked that only a write can check.

    Raises:
        SinkError: a sink would refuse the epoch; nothing is planned.
    """
    notes = []
    for topic in pipeline.topics:
        if (short := short_transaction(topic, restart)) is not None:
            notes.append(f"{topic.name}: {short}")
        if topic.semantics == "at_least_once":
            notes.append(
                f"{topic.name} is at_least_once, which waives INV-5 (a commit is repeatable) for it: a crash while an"
                " epoch is published sends its rows again"
            )
    for declared in pipeline.post_commit_sinks:
        sink = ledger.sink(pipeline, declared.name)
        try:
            if hasattr(sink, "preflight"):
                sink.preflight(pipeline.name)
            if hasattr(sink, "prepare") and not only_read:
                sink.prepare(pipeline.name)
        except SinkUnavailableError as error:
            notes.append(f"{declared.name} is down, and shows this epoch when it is back: {error}")
    return notes


def short_transaction(topic: KafkaTopic, restart: RestartStrategy) -> str | None:
    """What it means that a topic's transactions end before the restart strategy tries again; None if they do not."""
    waits = restart.delay if restart.retries >= WITHOUT_END else restart.retries * restart.delay
    if topic.semantics != "exactly_once" or topic.transaction_timeout >= waits:
        return None
    return (
        f"transaction_timeout is {duration(topic.transaction_timeout.total_seconds())}, the restart strategy may wait"
        f" {duration(waits.total_seconds())}: a transaction that a failure leaves open is aborted by the broker"
        " meanwhile, and the next try sends its epoch again"
    )


def left_due(pipeline: Pipeline, waiting: Mapping[str, int]) -> tuple[str, ...]:
    """Notes on removed sinks with unpublished epochs, if no other sink makes the DAG publish."""
    if pipeline.post_commit_sinks:
        return ()
    return tuple(
        f"{sink} was removed from the declaration with {epochs} epochs unpublished:"
        f" `epochline publish {pipeline.name}` publishes them"
        for sink, epochs in sorted(waiting.items())
    )


def full_sinks(ledger: Ledger, pipeline: Pipeline) -> list[str]:
    """Notes on sinks that have reached ``max_unpublished_epochs``."""
    if not pipeline.post_commit_sinks:
        return []
    with ledger.transaction() as tx:
        waiting = tx.receipts.unpublished(pipeline.name)
    return [
        f"{sink.name} has {waiting[sink.name]} epochs still to show, and max_unpublished_epochs is"
        f" {sink.max_unpublished_epochs}"
        for sink in pipeline.post_commit_sinks
        if waiting.get(sink.name, 0) >= sink.max_unpublished_epochs
    ]
