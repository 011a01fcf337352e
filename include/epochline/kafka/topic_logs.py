"""Topics as audits and previews read them: what Kafka holds now, and its records."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from epochline.kafka.records import ReadSession, RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.planning import HeldLog


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """The topics of one Kafka cluster. A read waits ``patience`` seconds for the next record."""

    settings: Mapping[str, str] = field(repr=False)
    patience: float = 120

    @contextmanager
    def session(self) -> Iterator[ReadSession]:
        """Opens a consumer, as `epochline.kafka.records.RecordReader` does."""
        with RecordReader(self.settings, self.patience).session() as session:
            yield session

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """The logs of those topics that exist, by topic and partition, up to the last stable offset.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceError: Kafka refuses.
        """
        return KafkaOffsets(self.settings).held(topics) if topics else {}
