"""Topics of a test to which pipelines publish: what Kafka would get is kept in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import Outbox
from epochline.postgres.ledger.receipts import rows_of
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.sink import Committable, PartWriter, ShownEpoch, Sink, SinkAttempt, WrittenPart
from epochline.testing.records import Record


@dataclass
class Published:
    """What all pipelines of a test published, and the newest epoch of each pipeline and sink. Makes their sinks."""

    records: list[Record] = field(default_factory=list)
    newest: dict[tuple[str, str], ShownEpoch] = field(default_factory=dict)

    def sink(self, ledger: PostgresLedger, pipeline: Pipeline, name: str) -> Sink:
        """The sink of a topic, as `epochline.postgres.ledger.transactions.SinkFactory` makes it."""
        (outbox,) = (outbox for outbox in pipeline.outboxes if outbox.topic.name == name)
        return _TopicInMemory(self, ledger, pipeline.name, outbox)


@dataclass(frozen=True)
class _TopicInMemory(Sink):
    """Takes an epoch's rows from the outbox, as the sink of a real topic does."""

    published: Published
    ledger: PostgresLedger
    pipeline: str
    outbox: Outbox

    def newest_shown(self, pipeline: str) -> ShownEpoch | None:
        return self.published.newest.get((pipeline, self.outbox.topic.name))

    def write(self, attempt: SinkAttempt, part: int) -> PartWriter:
        raise NotImplementedError(f"{self.outbox.topic.name}: rows are staged for its outbox")

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        return {}

    def commit(self, committable: Committable) -> None:
        attempt, topic = committable.attempt, self.outbox.topic
        with self.ledger.connection() as connection:
            rows = list(rows_of(connection, self.outbox, attempt.epoch_id))
        self.published.records += [
            Record(value=value, key=key, headers=headers, topic=named or topic.topic, partition=partition)
            for key, value, headers, partition, named in rows
        ]
        self.published.newest[self.pipeline, topic.name] = ShownEpoch(
            generation=attempt.generation, epoch_id=attempt.epoch_id, token=attempt.token, reached=committable.reached
        )

    def abort(self, attempt: SinkAttempt) -> None:
        return

    def sending_seconds(self) -> float | None:
        return None
