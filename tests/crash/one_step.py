"""The tasks of a run on a topic that cases share, each to be taken in a process of its own (`tests.processes`)."""

import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochline import KafkaSource, PostgresTable, StateTable, failpoints
from epochline.cli.connections import adapters
from epochline.coordinator import LEASE, Plan, renew
from epochline.failpoints import watched
from epochline.ports import OffsetSource
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.parts import Part
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from epochline.spark import job
from epochline.spark.functions import ship_functions
from epochline.spark.part_rows import DIGEST, sink_writer
from epochline.spark.source import claim_reader
from epochline.spark.stage_frames import Made
from epochline.spark.state import StateReader, WindowReader
from epochline.spark.transaction import PartTransaction
from tests.crash.kinds import ALL_TIME, KINDS, WINDOW
from tests.crash.line import Line
from tests.crash.split_commit import Semantics, SplitLedger
from tests.job import write_parts


class SharedTopic(Line):
    """A pipeline of one case. All cases read one topic, whose records were read from Kafka once.

    ``records`` is the file with the pickled Arrow batch of each partition, ``limit`` the most records of an epoch,
    ``semantics`` how commits are split (`tests.crash.split_commit`).
    """

    former_source: OffsetSource
    """Kafka under the first leader of every partition."""
    lost_token = ""
    search = timedelta(minutes=1)
    unwatched: Any
    """The ledger without failpoints."""

    def __init__(
        self,
        dsn: str,
        bootstrap: str,
        *,
        topic: str,
        records: str,
        limit: int = 1000,
        kind: str = "plain",
        semantics: Semantics = "exactly_once",
        **options: Any,
    ) -> None:
        self.semantics = semantics
        self.log = Path(records).with_name(f"{options['name']}.log")
        of_kind = KINDS[kind](options["name"], Path(records).parent)
        source = KafkaSource(topics=topic, records_per_epoch=limit, startup=of_kind.pop("startup", "earliest"))
        super().__init__(dsn, bootstrap, partitions=0, source=source, **of_kind, **options)
        self.topic = topic
        self.records: dict[int, pa.RecordBatch] = pickle.loads(Path(records).read_bytes())  # noqa: S301 - of our own

    def read(self, planned: PlannedRange, batch: int = 8) -> Iterator[pa.RecordBatch]:
        whole = self.records[planned.tp.partition]
        for start in range(planned.range.start, planned.range.until, batch):
            yield whole.slice(start, min(batch, planned.range.until - start))

    def stage(self, planned: Plan | None, ticket: StagingTicket) -> None:
        plan = read_plan(self.via, self.name, ticket.epoch_id, ticket.attempt)
        ticket = replace(ticket, refused=plan.ticket.refused)
        try:
            if plan.ranges:
                self.write(plan.ranges, ticket)
            else:
                self.write_claims(ticket)
            job.end(ticket, self.via, Made())
        except Exception as error:
            ours = job._what_happened(ticket, self.via, error)
            if ours is None or ours is error:
                raise
            raise ours from error

    def write(self, ranges: Sequence[PlannedRange], ticket: StagingTicket) -> None:
        counted = [sink for sink in self.pipeline.tables if sink.mode == "upsert" and sink.key != ("value",)]
        rest = {sink.table for sink in counted}
        rows_of_records = replace(ticket, tables=tuple(table for table in ticket.tables if table.sink not in rest))
        write_parts(self.writer(rows_of_records), map(self.read, ranges))
        records = sum(len(planned.range) for planned in ranges)
        for state in self.pipeline.states:
            records += self.counted_before(state, ticket)
        for sink in counted:
            self.write_counted(sink, ticket, records)

    def counted_before(self, state: StateTable, ticket: StagingTicket) -> int:
        windows = self.pipeline.windowing
        if windows is None:
            found = list(
                StateReader.of(ticket, state, self.via).read(iter([pa.RecordBatch.from_pydict({"kind": ["all"]})]))
            )
        else:
            reader = WindowReader.of(ticket, state, self.via, lateness=windows.lateness)
            span = {"value": ["all"], "_from": [WINDOW[0]], "_to": [WINDOW[1]]}
            found = list(reader.touched(iter([pa.RecordBatch.from_pydict(span)])))
            assert not list(reader.closing(None, WINDOW[0]))
        return sum(count.as_py() for batch in found for count in batch.column("records"))

    def write_counted(self, sink: PostgresTable, ticket: StagingTicket, records: int) -> None:
        spec = self.pipeline.spec
        writer = sink_writer(spec, sink.spec, ticket, self.via, ship_functions(spec))
        key: dict[str, object] = {"kind": "all"}
        if self.pipeline.windows is not None:
            key = {"value": "all", "window_start": WINDOW[0], "window_end": WINDOW[1]}
        row = pa.RecordBatch.from_pylist([{**key, "records": records, DIGEST: records}])
        write_parts(writer, [iter([row])])

    def write_claims(self, ticket: StagingTicket) -> None:
        reader = claim_reader(ticket, self.via)
        write_parts(self.writer(ticket), map(reader.read, range(reader.tasks)))

    # A task of Airflow finds its epoch by XCom; here the ledger is asked, past every failpoint.

    def epoch_of(self, who: str) -> int:
        asked = "SELECT max(epoch_id) FROM epochline.epoch WHERE pipeline = %s AND run_id = %s"
        return int(self.query(asked, self.name, who)[0][0])

    def ticket_of(self, epoch_id: int) -> StagingTicket:
        with PostgresLedger(self.dsn).transaction() as tx:
            epoch = tx.epochs.lock(self.name, epoch_id)
            attempt = tx.attempts.live(epoch)
            assert attempt is not None
            return tx.attempts.ticket(attempt, tx.epochs.declaration(epoch), tx.epochs.planned_targets(epoch))

    # The tasks, each by the name of the step.

    def step_plan(self, who: str) -> str:
        return str(self.plan(who, writers=2, scheduled=True).outcome)

    def step_backfill(self, who: str) -> str:
        return str(self.plan(who, writers=2, interval=ALL_TIME).outcome)

    def step_preview(self, who: str) -> str:
        return f"{len(self.preview().ranges)} ranges"

    def step_pre_commit(self, who: str) -> str:
        ticket = self.begin(self.epoch_of(who), who)
        if ticket is None:
            return "sealed already"
        self.stage(None, ticket)
        return str(self.seal(ticket, who).read)

    def step_renew(self, who: str) -> str:
        renew(self.ledger, self.ticket_of(self.epoch_of(who)), self.run_of(who), lease=LEASE)
        return "renewed"

    def step_stage(self, who: str) -> str:
        self.stage(None, self.ticket_of(self.epoch_of(who)))
        return "staged"

    def step_write_late(self, who: str) -> str:
        """A driver that writes for an attempt that is sealed already."""
        epoch_id = self.epoch_of(who)
        with PostgresLedger(self.dsn).transaction() as tx:
            ranges = tx.epochs.ranges(tx.epochs.lock(self.name, epoch_id))
        self.write(ranges, self.ticket_of(epoch_id))
        return "written"

    def step_write_twice(self, who: str) -> str:
        """A task of Spark that is run again after its part was committed."""
        ticket = self.ticket_of(self.epoch_of(who))
        for _ in range(2):
            part = PartTransaction(ticket, self.via, "0198a8f0-0000-7000-8000-000000000001", 0)
            try:
                part.finish([Part(sink=table.sink, rows=0, message={"rows": 0}) for table in ticket.written])
            finally:
                part.close()
        return "written"

    def step_keep_error(self, who: str) -> str:
        job._keep_error(self.ticket_of(self.epoch_of(who)), self.via, RuntimeError("what Spark said"))
        return "kept"

    def step_commit(self, who: str) -> str:
        return str(self.commit(self.epoch_of(who)).outcome)

    def step_split_commit(self, who: str) -> str:
        """Commit and publish in the semantics of the case, the process killed where the environment says."""
        split = SplitLedger(self.unwatched, self.semantics, self.log, passing)
        self.ledger = watched(split)
        epoch_id = self.epoch_of(who)
        self.commit(epoch_id)
        split.replay(self.pipeline)
        return f"{len(self.publish())} shown"

    def step_publish(self, who: str) -> str:
        return f"{len(self.publish())} shown"

    def step_abort(self, who: str) -> str:
        self.abort(self.epoch_of(who), who)
        return "aborted"


DIES = "EPOCHLINE_TEST_DIES"
"""The place between two durable steps of a split commit at which the process kills itself."""


def passing(place: str) -> None:
    """Pass a place of a split commit."""
    if isinstance(failpoints._armed, Tracer):
        failpoints._armed.passing(place)
    if os.environ.get(DIES) == place:
        os.kill(os.getpid(), signal.SIGKILL)


class Tracer:
    """In place of failpoints that act: writes down every one that is passed."""

    faults = ("all",)

    def __init__(self, trace: str) -> None:
        self._trace = trace

    def passing(self, name: str) -> None:
        with open(self._trace, "a") as trace:
            trace.write(f"{name}\n")


def take_step(folder: str, made_of: dict[str, Any], step: str, run: str, trace: str | None) -> Any:
    """One task of a run: ``made_of`` are arguments of `SharedTopic`, ``step`` is its name after ``step_``.

    ``trace`` is a file for the names of all failpoints that the task passes, where none is to act.
    """
    os.chdir(folder)
    if trace is not None:
        failpoints._armed = Tracer(trace)  # type: ignore[assignment]
    line = SharedTopic(**made_of)
    line.unwatched = line.ledger
    line.ledger, line.source = adapters().ledger(line.pipeline), adapters().offsets(line.pipeline)
    return getattr(line, f"step_{step}")(run)
