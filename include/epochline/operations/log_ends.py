"""Ask Kafka where logs end, for the pages: also of pipelines that plan rarely. Repeatable, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochline.declare.pipeline import Pipeline
from epochline.ports import Ledger, OffsetSource
from epochline.protocol.inputs import in_ledger


def refresh_log_ends(ledger: Ledger, source: OffsetSource, pipelines: Sequence[Pipeline], connection: str) -> int:
    """Store where the logs of pipelines begin and end, and how long Kafka keeps them; return the number of partitions.

    Four requests to Kafka and one transaction, however many pipelines there are. A pipeline that has never planned is
    not in the ledger, and nothing is stored for it.

    Args:
        ledger: of all the pipelines.
        source: the Kafka behind the connection.
        pipelines: the declarations.
        connection: id of the connection. A source that does not read it is left out.

    Raises:
        SourceError: Kafka does not answer, or refuses.
        LedgerError: the ledger does not answer.
    """
    read = {
        pipeline.name: {name: one for name, one in pipeline.kafka_sources.items() if one.connection == connection}
        for pipeline in pipelines
    }
    ends = source.log_ends([one for sources in read.values() for one in sources.values()])
    with ledger.transaction() as tx:
        for pipeline, sources in sorted(read.items()):
            own = [
                replace(end, tp=in_ledger(name, end.tp))
                for name, one in sources.items()
                for end in ends
                if one.reads(end.tp.topic)
            ]
            tx.chain.keep_log_ends(pipeline, own)
    return len(ends)
