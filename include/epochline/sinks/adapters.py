"""The adapters of a host, composed in one place: the ledger with its sinks, Kafka's offsets, a job's credentials.

Clients of PostgreSQL and Kafka are imported by the methods that need them: a command pays for what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochline.config.connections import Connection, Connections, JobCredentials

if TYPE_CHECKING:
    from epochline.declare.pipeline import Pipeline
    from epochline.declare.source import CustomSource, OneSource
    from epochline.kafka.topic_logs import TopicLogs
    from epochline.ports import Ledger, OffsetSource
    from epochline.postgres.ledger.transactions import PostgresLedger
    from epochline.protocol.staging import StagingTicket
    from epochline.sources.reading import SourceReader


@dataclass(frozen=True, slots=True)
class Adapters:
    """What reaches the servers of a host's connections. Nothing connects before it is used.

    Args:
        connections: of the host.
        application_name: of the host, as ``pg_stat_activity`` shows it.
    """

    connections: Connections
    application_name: str

    def ledger_of(self, pipeline: Pipeline) -> Ledger:
        """The ledger behind the pipeline's PostgreSQL connection."""
        from epochline.failpoints import watched

        lock_timeout = pipeline.lock_timeout.total_seconds()
        return watched(self._ledger(pipeline.postgres_connection, lock_timeout=lock_timeout))

    def ledger_at(self, connection_id: str) -> Ledger:
        """The ledger of a database, for actions on pipelines that may no longer be declared."""
        return self._ledger(connection_id)

    def _ledger(self, connection_id: str, **options: Any) -> PostgresLedger:
        from epochline.postgres.ledger.transactions import PostgresLedger
        from epochline.sinks import sinks_by

        return PostgresLedger(
            self.connections.postgres_dsn(connection_id),
            application_name=self.application_name,
            sink_factory=sinks_by(self.connections.kafka_settings),
            **options,
        )

    def offsets_of(self, pipeline: Pipeline) -> OffsetSource:
        """The Kafka behind the pipeline's connection, the source of the user's own, or several of them together."""
        from epochline.failpoints import watched_source

        return watched_source(self.offsets_by(pipeline, self.offsets_of_one))

    def offsets_by(self, pipeline: Pipeline, of_one: Callable[[OneSource], OffsetSource]) -> OffsetSource:
        """The pipeline's source, or several of them together, each reached by a function of the caller."""
        from epochline.sources.several import offsets_of_source

        return offsets_of_source(pipeline.source, of_one)

    def offsets_of_one(self, source: OneSource) -> OffsetSource:
        """The Kafka behind a source's connection, or the source of the user's own."""
        from epochline.declare.source import CustomSource

        if isinstance(source, CustomSource):
            from epochline.sources.positions import SourcePositions

            return SourcePositions(source.spec, self._source_connection(source))
        from epochline.kafka.source import KafkaOffsets

        return KafkaOffsets(self.connections.kafka_settings(source.connection))

    def records_of(self, source: OneSource, patience: float = 120) -> TopicLogs | SourceReader:
        """The records of a source, for audits and previews.

        Args:
            source: as it is declared.
            patience: how long a read waits for Kafka's next record, in seconds.

        Raises:
            ConfigurationError: there is no such connection.
        """
        from epochline.declare.source import CustomSource

        if isinstance(source, CustomSource):
            from epochline.sources.reading import SourceReader

            return SourceReader(source.spec, connection=self._source_connection(source))
        from epochline.kafka.topic_logs import TopicLogs

        return TopicLogs(self.connections.kafka_settings(source.connection), patience)

    def _source_connection(self, source: CustomSource) -> Connection | None:
        return None if source.connection is None else self.connections.look_up(source.connection)

    @contextmanager
    def opened_offsets(self, connection_id: str) -> Iterator[OffsetSource]:
        """The Kafka behind a connection, asked by one client in the whole block.

        Raises:
            ConfigurationError: there is no such connection.
            SourceError: Kafka does not answer, or refuses.
        """
        from epochline.failpoints import watched_source
        from epochline.kafka.source import KafkaOffsets

        source = KafkaOffsets(self.connections.kafka_settings(connection_id))
        with source.one_client():
            yield watched_source(source)

    def job_credentials(self, pipeline: Pipeline, ticket: StagingTicket) -> JobCredentials:
        """What the Spark job of an attempt is given; a login of its own is checked before.

        Raises:
            ConfigurationError: a connection is missing or incomplete, or a grant is missing; the message names it.
            LedgerUnavailableError: PostgreSQL cannot be reached.
        """
        from epochline.declare.source import CustomSource

        dsn = self.connections.postgres_dsn(pipeline.postgres_connection)
        if pipeline.writer_connection is not None:
            from epochline.postgres.ledger.writer import check_writer

            ledger, dsn = dsn, self.connections.postgres_dsn(pipeline.writer_connection)
            check_writer(ledger, dsn, ticket)
        brokers = {
            one.connection: self.connections.kafka_settings(one.connection) for one in pipeline.kafka_sources.values()
        }
        several = len(pipeline.inputs) > 1
        return JobCredentials(
            dsn=dsn,
            kafka={} if several else next(iter(brokers.values()), {}),
            kafkas=brokers if several else {},
            source_connections={
                one.source.connection: self.connections.look_up(one.source.connection)
                for one in pipeline.inputs.values()
                if isinstance(one.source, CustomSource) and one.source.connection is not None
            },
            registries=self.connections.registries_of(pipeline),
        )
