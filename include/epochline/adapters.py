"""The adapters of a host, composed in one place: the ledger with its sinks, sources, a job's credentials.

Clients of PostgreSQL and Kafka are imported by the methods that need them: a command pays for what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochline.config.connections import Connection, Connections, JobCredentials

if TYPE_CHECKING:
    from epochline.declare.pipeline import Pipeline
    from epochline.declare.source import CustomSource, OneSource
    from epochline.kafka.records import RecordReader
    from epochline.ports import Ledger, OffsetSource
    from epochline.protocol.staging import StagingTicket
    from epochline.protocol.why import Content, Record, Why
    from epochline.sources.reading import SourceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters(Connections):
    """What reaches the servers of a host's connections. Nothing connects before it is used.

    Args:
        look_up: as for `Connections`.
        application_name: of the host, as ``pg_stat_activity`` shows it.
    """

    application_name: str

    def ledger(self, of: Pipeline | str, *, any_version: bool = False) -> Ledger:
        """The ledger of a pipeline, or of a connection id, for actions on pipelines that may no longer be declared.

        With ``any_version``, only targets may be asked: there may be no ledger, or one of another version.
        """
        from epochline.failpoints import armed, watched
        from epochline.postgres.ledger.transactions import LOCK_TIMEOUT_SECONDS, PostgresLedger
        from epochline.sinks import sinks_by

        if isinstance(of, str):
            connection_id, lock_timeout = of, float(LOCK_TIMEOUT_SECONDS)
        else:
            connection_id, lock_timeout = of.postgres_connection, of.lock_timeout.total_seconds()
        ledger = PostgresLedger(
            self.postgres_dsn(connection_id),
            application_name=self.application_name,
            lock_timeout=lock_timeout,
            sink_factory=sinks_by(self.kafka_settings),
            any_version=any_version,
        )
        if armed():
            with ledger.connection():  # It refuses before the first failpoint.
                pass
        return watched(ledger)

    def offsets(self, pipeline: Pipeline, kafka: Callable[[str], OffsetSource] | None = None) -> OffsetSource:
        """The pipeline's Kafka, the source of the user's own, or several of them together.

        Args:
            pipeline: the declaration.
            kafka: gives the Kafka of a connection id; by default, every question opens a client.
        """
        from epochline.declare.source import CustomSource
        from epochline.failpoints import watched_source
        from epochline.sources.several import offsets_of_source

        def of_one(source: OneSource) -> OffsetSource:
            if isinstance(source, CustomSource):
                from epochline.sources.positions import SourcePositions

                return SourcePositions(source.spec, self._source_connection(source))
            if kafka is not None:
                return kafka(source.connection)
            from epochline.kafka.source import KafkaOffsets

            return KafkaOffsets(self.kafka_settings(source.connection))

        return watched_source(offsets_of_source(pipeline.source, of_one))

    @contextmanager
    def kafka(self, connection_id: str) -> Iterator[OffsetSource]:
        """The Kafka of a connection, asked by one client in the whole block.

        Raises:
            ConfigurationError: there is no such connection.
            SourceError: Kafka does not answer, or refuses.
        """
        from epochline.failpoints import watched_source
        from epochline.kafka.source import KafkaOffsets

        source = KafkaOffsets(self.kafka_settings(connection_id))
        with source.one_client():
            yield watched_source(source)

    def records(self, source: OneSource, patience: float = 120) -> RecordReader | SourceReader:
        """The records of a source, for audits and previews; `ConfigurationError` if there is no such connection.

        ``patience`` is how many seconds a read waits for Kafka's next record.
        """
        from epochline.declare.source import CustomSource

        if isinstance(source, CustomSource):
            from epochline.sources.reading import SourceReader

            return SourceReader(source.spec, connection=self._source_connection(source))
        from epochline.kafka.records import RecordReader

        return RecordReader(self.kafka_settings(source.connection), patience)

    def record_again(self, source: OneSource, topic: str, record: Record, patience: float = 15) -> Content | str:
        """One record's bytes, or why the source has them no more: `epochline.sources.one_record.read_again`."""
        from epochline.sources.one_record import read_again

        return read_again(self.records(source, patience), record, topic)

    @staticmethod
    def explain(session: Any, table: str, key: Sequence[str], most: int, pipeline: str | None = None) -> Why:
        """What made rows of a target, in a session of psycopg2: `epochline.postgres.ledger.why.explain`."""
        from epochline.postgres.ledger.why import explain

        return explain(session, table, key, most, pipeline)

    def _source_connection(self, source: CustomSource) -> Connection | None:
        return None if source.connection is None else self.look_up(source.connection)

    def check_writer(self, pipeline: Pipeline) -> None:
        """Check the login of ``writer_connection``, as far as that needs no attempt.

        Raises:
            ConfigurationError: a grant is missing, or the connection leads to another database.
            LedgerUnavailableError: PostgreSQL cannot be reached.
        """
        from epochline.postgres.ledger.writer import check_login

        if pipeline.writer_connection is not None:
            login = self.postgres_dsn(pipeline.writer_connection)
            check_login(self.postgres_dsn(pipeline.postgres_connection), login, pipeline.writer_connection)

    def job_credentials(self, pipeline: Pipeline, ticket: StagingTicket) -> JobCredentials:
        """What the Spark job of an attempt is given; a login of its own is checked before.

        Raises:
            ConfigurationError: a connection is missing or incomplete, or a grant is missing; the message names it.
            LedgerUnavailableError: PostgreSQL cannot be reached.
        """
        from epochline.declare.source import CustomSource

        dsn = self.postgres_dsn(pipeline.postgres_connection)
        if pipeline.writer_connection is not None:
            from epochline.postgres.ledger.writer import check_writer

            ledger, dsn = dsn, self.postgres_dsn(pipeline.writer_connection)
            check_writer(ledger, dsn, ticket)
        ids = {source.connection for source in pipeline.kafka_sources.values()}
        brokers = {connection_id: self.kafka_settings(connection_id) for connection_id in ids}
        several = len(pipeline.inputs) > 1
        return JobCredentials(
            dsn=dsn,
            kafka={} if several else next(iter(brokers.values()), {}),
            kafkas=brokers if several else {},
            source_connections={
                input_.source.connection: self.look_up(input_.source.connection)
                for input_ in pipeline.inputs.values()
                if isinstance(input_.source, CustomSource) and input_.source.connection is not None
            },
            registries=self.registries_of(pipeline),
        )
