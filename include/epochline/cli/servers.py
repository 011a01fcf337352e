"""The servers of all declared pipelines, each opened once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, TypeVar

from epochline.errors import EpochlineError

if TYPE_CHECKING:
    from epochline.cli.database import Session
    from epochline.declare.pipeline import Pipeline
    from epochline.ports import OffsetSource

T = TypeVar("T")


class Servers:
    """The databases and Kafkas of all pipelines. Each is opened once, when first needed, and kept until the block ends.

    A server that cannot be reached is tried once, so that only one pipeline waits for it. Each pipeline that needs the
    server gets the same error.
    """

    def __init__(self, block: ExitStack) -> None:
        self._block = block
        self._databases: dict[str, Session | EpochlineError] = {}
        self._kafkas: dict[str, OffsetSource | EpochlineError] = {}

    def ledger(self, pipeline: Pipeline) -> Session:
        """A session with the pipeline's ledger.

        Raises:
            LedgerUnavailableError, LedgerError, ConfigurationError: it cannot be reached.
        """
        from epochline.cli import connections, database

        hosted = connections.adapters()
        return self._kept(
            self._databases, pipeline.postgres_connection, lambda one: database.session(hosted.postgres_dsn(one))
        )

    def source(self, pipeline: Pipeline) -> OffsetSource:
        """The pipeline's Kafka, the source of the user's own that it declares, or several of them together.

        Raises:
            SourceError, ConfigurationError: one cannot be reached.
        """
        from epochline.cli import connections

        hosted = connections.adapters()
        return hosted.offsets(pipeline, lambda connection: self._kept(self._kafkas, connection, hosted.kafka))

    def _kept(
        self, known: dict[str, T | EpochlineError], connection: str, opened: Callable[[str], AbstractContextManager[T]]
    ) -> T:
        if connection not in known:
            try:
                known[connection] = self._block.enter_context(opened(connection))
            except EpochlineError as error:
                known[connection] = error
        found = known[connection]
        if isinstance(found, EpochlineError):
            raise found
        return found
