"""Epochs of a test: records in, a commit in a real PostgreSQL, rows, quarantine, state and published records out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from psycopg2 import sql
from psycopg2.extras import RealDictCursor

from epochline import coordinator
from epochline.config.discovery import find
from epochline.coordinator import Plan, PlanOutcome
from epochline.declare.columns import LINEAGE
from epochline.declare.inputs import Sources
from epochline.declare.names import ledger_prefix, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.settings import Settings
from epochline.declare.table import PostgresTable
from epochline.errors import ConfigurationError, EpochlineError, RecordsRefusedError
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.postgres.queries.statements import Connection, compose, joined, names
from epochline.protocol.epoch import Counts, Run
from epochline.protocol.offsets import belongs_to
from epochline.protocol.staging import StagingTicket
from epochline.sources.several import SeveralOffsets
from epochline.spark.given import stage_here, stage_in_spark
from epochline.testing.records import GivenTopics, Record, append_all
from epochline.testing.topics import Published

Row = dict[str, Any]

_QUARANTINE = """
SELECT topic, partition, "offset", record_timestamp AS timestamp, key, value, headers, reason
FROM epochline.quarantine WHERE pipeline = {pipeline} AND epoch_id = {epoch} ORDER BY topic, partition, "offset"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """What one epoch left, as it was right after its commit."""

    epoch_id: int | None
    """None if there was nothing to read."""
    counts: Counts
    """Records read, passed, skipped and quarantined."""
    quarantine: list[Row]
    """The epoch's bad records: topic, partition, offset, timestamp, key, value, headers, reason."""
    state: dict[str, list[Row]]
    """The rows of each state table, in the order of its key; open windows are a state table too."""
    topics: dict[str, list[Record]]
    """What the epoch published, by topic, in the order of sending."""
    _rows: dict[str, list[Row]] = field(repr=False)

    @property
    def skipped(self) -> int:
        """How many records parse left out."""
        return self.counts.skipped

    def rows(self, table: str, *, lineage: bool = False) -> list[Row]:
        """Every row that a target had after the commit, in the order of its key, else of its records or epochs.

        Args:
            table: as the declaration names it.
            lineage: with the columns ``_topic, _partition, _offset, _row, _epoch``, if the target has them.

        Raises:
            ConfigurationError: the pipeline has no such target.
        """
        if table not in self._rows:
            raise ConfigurationError(f"the pipeline has no target {table}; it has {', '.join(self._rows)}.")
        left_out = () if lineage else LINEAGE
        return [{name: value for name, value in row.items() if name not in left_out} for row in self._rows[table]]


@dataclass(frozen=True, slots=True)
class _Tested:
    """A pipeline with its topics in memory."""

    pipeline: Pipeline
    topics: Mapping[str, GivenTopics]


class EpochRunner:
    """Runs epochs of pipelines on one database, whose ledger is migrated. pytest's fixture `run_epoch` makes one.

    Args:
        dsn: libpq URL of the database.
        spark: gives the Spark session that runs transforms and windows.
    """

    def __init__(self, dsn: str, spark: Callable[[], Any]) -> None:
        self.dsn = dsn
        self._spark = spark
        self._published = Published()
        self._ledger = PostgresLedger(dsn, application_name="epochline tests", sink_factory=self._published.sink)
        self._tested: dict[str, _Tested] = {}
        self._epochs = 0

    def __call__(self, pipeline: Pipeline | str, records: Iterable[Any] = ()) -> EpochResult:
        """Append records to the pipeline's topics and commit one epoch, as a run in production does.

        The first epoch of a pipeline makes its tables, and its topics begin empty: ``startup``, ``settings`` and
        ``profile`` of the declaration do not apply. The next call goes on with the same tables, state and windows. An
        epoch reads what ``records_per_epoch`` allows; the next one reads the rest. After an error the epoch is aborted,
        and the next call reads its records again.

        Args:
            pipeline: the declaration, or its name: it is looked for where `epochline validate` does.
            records: values (bytes, text, None for a tombstone, anything else as JSON) or `Record`.

        Raises:
            DeclarationError: no file declares a pipeline with this name.
            ConfigurationError: the pipeline writes files or a custom sink; a record names no topic of the pipeline.
            EpochlineError: as in production.
            Exception: what parse raised. A transform's error is Spark's.
        """
        if isinstance(pipeline, str):
            pipeline = find(pipeline)
        tested = self._tested.get(pipeline.name)
        if tested is None or tested.pipeline != _in_test(pipeline):
            tested = self._begin(pipeline, tested)
        append_all(tested.topics, pipeline.inputs, records)
        self._epochs += 1
        run = Run(dag_id="pytest", run_id=f"pytest-{self._epochs}", host=socket.gethostname())
        before = len(self._published.records)
        planned = self._commit(tested, run)
        return self._result(tested.pipeline, planned, self._published.records[before:])

    def sql(self, statement: str) -> list[Row]:
        """Run a statement, such as the CREATE TABLE of an existing table, in its own transaction; gives its rows."""
        with self._ledger.connection() as connection:
            return _rows(connection, statement)

    def _begin(self, pipeline: Pipeline, before: _Tested | None) -> _Tested:
        """Make the targets. A changed declaration goes on with the topics of the one before."""
        if pipeline.external:
            outside = ", ".join(sink.name for sink in pipeline.external)
            raise ConfigurationError(
                f"{pipeline.name}: {outside} would be written outside of the test's database, where the declaration"
                " says. Test the pipeline without it: pipeline.model_copy(update={'sinks': pipeline.targets})."
            )
        topics = {} if before is None else dict(before.topics)
        for name, one in pipeline.inputs.items():
            given = topics.setdefault(name, GivenTopics())
            for topic in one.source.topics:
                given.produce(topic, 0, 0)
        tested = _Tested(_in_test(pipeline), topics)
        with self._ledger.transaction() as tx:
            tx.targets.create(tested.pipeline)
        self._tested[pipeline.name] = tested
        return tested

    def _commit(self, tested: _Tested, run: Run) -> Plan:
        pipeline, ledger = tested.pipeline, self._ledger
        source = (
            SeveralOffsets(pipeline.source, tested.topics)
            if isinstance(pipeline.source, Sources)
            else tested.topics[""]
        )
        planned = coordinator.plan(ledger, source, pipeline, run)
        if planned.epoch is None:
            return planned
        epoch_id = planned.epoch.epoch_id

        def submit(ticket: StagingTicket) -> None:
            given = {
                name: [
                    topics.read(one, ledger_prefix(name)) for one in planned.ranges if belongs_to(name, one.tp.topic)
                ]
                for name, topics in tested.topics.items()
            }
            if pipeline.is_transformed:
                stage_in_spark(self._spark(), ticket, self.dsn, given)
            else:
                stage_here(read_plan(self.dsn, pipeline.name, epoch_id, ticket.attempt), self.dsn, given)

        try:
            while planned.outcome is not PlanOutcome.PRE_COMMITTED:
                try:
                    coordinator.stage(ledger, source, pipeline.name, epoch_id, run, submit=submit, stop=lambda: None)
                    break
                except RecordsRefusedError:
                    # Each of these attempts sets further records aside, so one is the last.
                    continue
            coordinator.commit(ledger, source, pipeline.name, epoch_id)
        except BaseException as error:
            with suppress(EpochlineError):
                coordinator.abort(ledger, pipeline.name, epoch_id, run, reason=str(error), by_operator=True)
            raise
        coordinator.publish(ledger, pipeline)
        return planned

    def _result(self, pipeline: Pipeline, planned: Plan, published: list[Record]) -> EpochResult:
        epoch_id = None if planned.epoch is None else planned.epoch.epoch_id
        counts, quarantine = Counts(), list[Row]()
        if epoch_id is not None:
            with self._ledger.transaction() as tx:
                counts = tx.epochs.lock(pipeline.name, epoch_id).counts
        with self._ledger.connection() as connection:
            if epoch_id is not None:
                quarantine = _rows(
                    connection, compose(_QUARANTINE, pipeline=sql.Literal(pipeline.name), epoch=epoch_id)
                )
            tables = {table.table: _content(connection, table) for table in (*pipeline.targets, *pipeline.states)}
        topics: dict[str, list[Record]] = {topic: [] for sink in pipeline.topics for topic in sink.topics}
        for record in published:
            topics.setdefault(record.topic or "", []).append(record)
        state = {table.table: tables.pop(table.table) for table in pipeline.states}
        return EpochResult(
            epoch_id=epoch_id, counts=counts, quarantine=quarantine, state=state, topics=topics, _rows=tables
        )


def _in_test(pipeline: Pipeline) -> Pipeline:
    """The declaration without its settings, so that nothing pauses or leaves files. Topics are read from the start."""
    earliest = {"startup": "earliest"}
    source = pipeline.source
    if isinstance(source, Sources):
        inputs = {
            name: one.model_copy(update={"source": one.source.model_copy(update=earliest)})
            for name, one in source.inputs.items()
        }
        source = source.model_copy(update={"inputs": inputs})
    else:
        source = source.model_copy(update=earliest)
    return pipeline.model_copy(update={"source": source, "settings": Settings(), "profile": None})


def _content(connection: Connection, table: PostgresTable) -> list[Row]:
    order = table.key or [name for name in LINEAGE if name in table.carried_lineage]
    by = joined([names(order), compose("t::text")] if order else [compose("t::text")])
    schema, name = split_table(table.table)
    statement = compose("SELECT * FROM {schema}.{name} t ORDER BY {by}", schema=schema, name=name, by=by)
    return _rows(connection, statement)


def _rows(connection: Connection, statement: Any) -> list[Row]:
    with connection.cursor(cursor_factory=RealDictCursor) as cursor:
        cursor.execute(statement)
        found = cursor.fetchall() if cursor.description else []
    return [
        {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()} for row in found
    ]
