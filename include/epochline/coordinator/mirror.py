"""Mirror: write the heads to the consumer group, for monitors and as evidence (INV-8)."""

import logging

from epochline.coordinator.evidence import Evidence, check_known
from epochline.coordinator.observe import ConsumerGroup
from epochline.declare.pipeline import Pipeline
from epochline.errors import LedgerError, SourceError
from epochline.ports import Ledger, OffsetSource

log = logging.getLogger(__name__)


def mirror(ledger: Ledger, source: OffsetSource, pipeline: Pipeline, *, known: bool = False) -> None:
    """Write the *current* heads to the consumer group, unless the declaration has ``mirror=False``.

    The group is for monitors; losing it loses nothing (INV-8). An epoch that the ledger does not know is never
    overwritten: it is evidence that the ledger went back in time. Nor is a group that shows less than was written to
    it: Kafka went back, and the next plan says so. ``known`` says that an operator decided to replace what it shows.

    After writing, the heads are read again, and written again if they moved, so that the slower of two mirrors never
    leaves an older epoch behind. Each write has a number, which the ledger keeps before it and confirms after it.
    """
    if not pipeline.source.mirror:
        return
    name, group, written, number = pipeline.name, pipeline.consumer_group, None, 0
    try:
        evidence: Evidence = ()
        if not known:
            with ledger.transaction() as tx:
                last = tx.receipts.last_mirror(name)
            shown = ConsumerGroup.observe(source, pipeline, last)
            shown.refuse_older()
            if shown.missing:
                raise SourceError(f"{group} is gone; the next plan says whether it has expired.")
            evidence = shown.evidence
        while True:
            with ledger.transaction() as tx:
                row = tx.epochs.lock_pipeline(name)
                if written is not None:
                    tx.receipts.confirm_mirror(name, number)
                check_known(tx, name, evidence)
                heads = [head for head in tx.chain.heads(name, row.generation) if pipeline.source.keeps(head.tp.topic)]
                if heads == (written or []):
                    return
                newest = max((head.epoch_id or 0 for head in heads), default=0)
                token = tx.attempts.committed_token(name, newest)
                topics = sorted(filter(pipeline.source.mirrors, {head.tp.topic for head in heads}))
                number = tx.receipts.begin_mirror(name, row.generation, newest, topics)
            source.mirror(group, heads, row.generation, newest, token, number)
            written = heads
    except (LedgerError, SourceError) as error:
        # The epoch is committed, so the task must not fail. The next commit, or plan without an epoch, mirrors again.
        log.warning("mirror.failed pipeline=%s group=%s reason=%s", name, group, error)
