"""Histories that hypothesis makes up, over the real use cases and a real PostgreSQL; invariants after every step.

Three runs, their Spark jobs and zombies, an operator and a lost connection; in the end one more run commits everything.
``EPOCHLINE_MACHINE_EXAMPLES`` sets the number of histories (`make test-all` asks for more).
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from epochline import KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import Plan, PlanOutcome
from epochline.coordinator.discard import sweep
from epochline.declare.names import QUARANTINE
from epochline.errors import (
    EpochBusyError,
    EpochFencedError,
    EpochStateError,
    LedgerUnavailableError,
    PlanChangedError,
    SealRefusedError,
)
from epochline.ports import Transaction
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.sink import Sink
from epochline.protocol.staging import StagingTicket
from tests.chains import chain_breaks
from tests.contract.worlds import PostgresWriter, bad_record, orders, rows_of, seen_in
from tests.driver import Driver
from tests.in_memory.kafka import FakeKafka

EXAMPLES = int(os.environ.get("EPOCHLINE_MACHINE_EXAMPLES", "25"))
RUNS = ("A", "B", "C")
REFUSALS = (EpochBusyError, PlanChangedError, EpochFencedError, EpochStateError, SealRefusedError)
"""How a step may fail whatever happened before. Anything else is a defect: a head never moves under a sealed epoch,
sealed staging is never lost, nothing deadlocks."""

_numbers = itertools.count(1)


class Lossy:
    """A ledger whose connection breaks once at a commit; the transaction happened, or it did not."""

    def __init__(self, ledger: PostgresLedger, at: int, happened: bool) -> None:
        self._ledger, self._left, self._happened = ledger, at, happened

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._left -= 1
        breaks = self._left == 0
        with self._ledger.transaction() as tx:
            yield tx
            if breaks and not self._happened:
                raise LedgerUnavailableError("the connection broke before the commit")
        if breaks:
            raise LedgerUnavailableError("the connection broke after the commit")

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        return self._ledger.sink(pipeline, name)


@dataclass
class Job:
    """A Spark job, dead or alive."""

    ticket: StagingTicket
    who: str
    ranges: tuple[PlannedRange, ...]
    written: set[int] = field(default_factory=set)


def is_poison(offset: int) -> bool:
    return offset % 4 == 3


class LedgerMachine(RuleBasedStateMachine):
    """Three runs of one pipeline on a database that many pipelines share."""

    dsn: str = ""
    met: Counter[str] = Counter()
    """What happened in all histories, so that their silence means something."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine_{next(_numbers)}"
        sink = PostgresTable(table=self.name, columns={"value": "text"})
        self.line = Driver()
        self.line.pipeline = orders(name=self.name, source=KafkaSource(topics=self.name), sinks=[sink])
        self.line.ledger = self.ledger = PostgresLedger(self.dsn, lock_timeout=20)
        self.line.source = self.kafka = FakeKafka()
        self.line.create()
        self.writer = PostgresWriter(self.dsn)
        self.epoch_of: dict[str, int] = {}
        self.jobs: list[Job] = []
        self.kept: dict[Any, Any] = {}
        self.connection = psycopg2.connect(self.dsn)
        self.connection.autocommit = True

    def query(self, statement: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, {"pipeline": self.name})
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def losing(self, at: int, happened: bool) -> Iterator[None]:
        """The connection of the block's steps is lost at a commit."""
        self.line.ledger = Lossy(self.ledger, at, happened)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.line.ledger = self.ledger

    # What happens.

    @initialize()
    def two_partitions(self) -> None:
        self.kafka.produce(self.name, 0, 5)
        self.kafka.produce(self.name, 1, 2)

    @rule(partition=st.integers(0, 1), records=st.integers(1, 4))
    def produce(self, partition: int, records: int) -> None:
        self.kafka.produce(self.name, partition, records)

    @rule(who=st.sampled_from(RUNS), limit=st.sampled_from([None, 1, 3]))
    def plan_or_clear(self, who: str, limit: int | None) -> None:
        with suppress(*REFUSALS):
            self._plan(who, limit)

    def _plan(self, who: str, limit: int | None = None) -> Plan:
        planned = self.line.plan(who, record_limit=limit, lease=timedelta(0))
        self.met[f"plan {planned.outcome}"] += 1
        for what in ("committed epoch", "aborted epoch"):
            self.met[f"recovery {what}"] += any(what in note for note in planned.notes)
        if planned.epoch is not None:
            self.epoch_of[who] = planned.epoch.epoch_id
            if planned.outcome in (PlanOutcome.PLANNED, PlanOutcome.REOPENED):
                self._lease_until("+", f"epoch_id = {planned.epoch.epoch_id}")
        return planned

    @rule()
    def lease_expires(self) -> None:
        self._lease_until("-", "state = 'PLANNED'")

    def _lease_until(self, sign: str, which: str) -> None:
        self.query(
            f"UPDATE epochline.epoch SET lease_until = now() {sign} interval '1 hour'"
            f" WHERE pipeline = %(pipeline)s AND {which}"
        )

    @precondition(lambda self: self.epoch_of)
    @rule(data=st.data())
    def begin_an_attempt(self, data: st.DataObject) -> None:
        with suppress(*REFUSALS):
            self._begin(data.draw(self._who()))

    def _begin(self, who: str) -> Job | None:
        ticket = self.line.begin(self.epoch_of[who], who)
        if ticket is None:
            return None
        with self.ledger.transaction() as tx:
            ranges = tuple(tx.epochs.ranges(tx.epochs.lock(self.name, ticket.epoch_id)))
        self.jobs.append(Job(ticket, who, ranges))
        return self.jobs[-1]

    @precondition(lambda self: self.epoch_of)
    @rule(data=st.data())
    def a_task_stages_and_seals(self, data: st.DataObject) -> None:
        """``pre_commit`` as it goes when nothing happens."""
        newest = max(self.epoch_of, key=lambda one: self.epoch_of[one])
        with suppress(*REFUSALS):
            self._pre_commit(newest if data.draw(st.booleans()) else data.draw(self._who()))

    def _pre_commit(self, who: str) -> None:
        """The task: begin, stage, seal; nothing where the epoch is sealed already. Only the seal may lose its connection."""
        losing, self.line.ledger = self.line.ledger, self.ledger
        job = self._begin(who)
        self.line.ledger = losing
        if job is not None:
            for at in range(len(job.ranges)):
                self._write(self.writer, job, at, at)
            assert self.writer.end(job.ticket)
            self.line.seal(job.ticket, who)
            self.met["sealed"] += 1

    def _a_job(self, data: st.DataObject) -> Job:
        """One of the last three."""
        return self.jobs[-1 - data.draw(st.integers(0, min(2, len(self.jobs) - 1)))]

    def _who(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted(self.epoch_of))

    def _an_epoch(self) -> st.SearchStrategy[int]:
        """The newest first, because histories that end soon are tried first."""
        return st.sampled_from(sorted(set(self.epoch_of.values()), reverse=True))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), whole=st.booleans())
    def a_job_writes(self, data: st.DataObject, whole: bool) -> None:
        """Any job, also one that was fenced long ago."""
        job = self._a_job(data)
        left = [number for number in range(len(job.ranges)) if number not in job.written]
        for number in left if whole else left[:1]:
            self._write(self.writer, job, number, number)
        if whole:
            self.writer.end(job.ticket)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_straggler_writes(self, data: st.DataObject) -> None:
        """An executor that was given up, of any job; its driver does not count it."""
        self._write(PostgresWriter(self.dsn), self._a_job(data), 0, 100 + next(_numbers))

    def _write(self, writer: PostgresWriter, job: Job, at: int, number: int) -> None:
        one = job.ranges[at]
        good, partition = [row for row in rows_of(one) if not is_poison(row["_offset"])], one.tp.partition
        bad = [offset for offset in range(one.range.start, one.range.until) if is_poison(offset)]
        quarantined = [bad_record(offset, "poison") | {"topic": self.name, "partition": partition} for offset in bad]
        seen = {(self.name, partition): seen_in(one, passed=len(good), quarantined=len(bad))}
        accepted = writer.part(job.ticket, number, {self.name: good, QUARANTINE: quarantined}, seen)
        self.met[f"part {'accepted' if accepted else 'refused'}"] += 1
        if accepted:
            job.written.add(number)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def seal_an_attempt(self, data: st.DataObject) -> None:
        job = self._a_job(data)
        with suppress(*REFUSALS):
            self.line.seal(job.ticket, job.who)

    @precondition(lambda self: self.epoch_of)
    @rule(data=st.data(), breaks=st.sampled_from([None, True, False]))
    def commit_an_epoch(self, data: st.DataObject, breaks: bool | None) -> None:
        """``breaks``: the connection is lost at the commit, which happened or did not."""
        epoch_id = data.draw(self._an_epoch())
        with suppress(*REFUSALS), self.losing(0 if breaks is None else 1, bool(breaks)):
            outcome = self.line.commit(epoch_id).outcome
            self.met[f"commit {outcome}{'' if breaks is None else ' after a lost answer'}"] += 1

    @rule(who=st.sampled_from(RUNS))
    def a_run_goes_through(self, who: str) -> None:
        """Every task of a run, one after the other: by chance alone few histories get to a commit."""
        with suppress(*REFUSALS):
            self._plan(who)
            if who in self.epoch_of:
                self._pre_commit(who)
                self.met[f"commit {self.line.commit(self.epoch_of[who]).outcome}"] += 1

    @precondition(lambda self: self.epoch_of)
    @rule(data=st.data(), by_operator=st.booleans())
    def abort_an_epoch(self, data: st.DataObject, by_operator: bool) -> None:
        """The teardown of a run, or an operator."""
        who = data.draw(self._who())
        asked = "operator" if by_operator else who
        with suppress(*REFUSALS):
            self.met[f"abort {self.line.abort(self.epoch_of[who], asked, by_operator=by_operator)}"] += 1

    @rule()
    def the_janitor_sweeps(self) -> None:
        sweep(self.ledger, self.name)

    @rule(first=st.sampled_from(RUNS), second=st.sampled_from(RUNS), at=st.integers(1, 6), happened=st.booleans())
    def a_plan_loses_its_connection(self, first: str, second: str, at: int, happened: bool) -> None:
        with suppress(*REFUSALS, LedgerUnavailableError), self.losing(at, happened):
            self._plan(first)
        self.plan_or_clear(second, None)

    @rule(
        task=st.sampled_from(["begin", "seal", "abort"]), at=st.sampled_from([1, 1, 2]),
        happened=st.booleans(), again=st.sampled_from([True, True, False]),
    )  # fmt: skip
    def a_task_loses_its_connection(self, task: str, at: int, happened: bool, again: bool) -> None:
        """A run of its own gets past its plan; its task is tried again by its scheduler, at once or never."""
        who = f"cut off {next(_numbers)}"
        self.kafka.produce(self.name, 0, 1)
        steps: dict[str, Callable[[], object]] = {
            "begin": lambda: self._begin(who),
            "seal": lambda: self._pre_commit(who),
            "abort": lambda: self.line.abort(self.epoch_of[who], who),
        }
        with suppress(*REFUSALS):
            if self._plan(who).epoch is None:
                return
            try:
                with self.losing(at, happened):
                    steps[task]()
            except LedgerUnavailableError:
                self.met[f"{task} lost its answer"] += 1
                if again:
                    steps[task]()
                    self.met[f"{task} after a lost answer"] += 1

    @precondition(lambda self: self.epoch_of)
    @rule(data=st.data(), planner=st.sampled_from(RUNS))
    def at_once(self, data: st.DataObject, planner: str) -> None:
        """Two commits, a plan, an abort and a sweep at the same moment."""
        epoch_id = data.draw(self._an_epoch())
        owner = next(who for who, own in self.epoch_of.items() if own == epoch_id)
        steps: list[Callable[[], object]] = [
            *[lambda: self.line.commit(epoch_id)] * 2, lambda: self._plan(planner),
            lambda: self.line.abort(epoch_id, owner), lambda: sweep(self.ledger, self.name),
        ]  # fmt: skip
        with ThreadPoolExecutor(len(steps)) as pool:
            for done in [pool.submit(step) for step in steps]:
                error = done.exception()
                if error is not None and not isinstance(error, REFUSALS):
                    raise error

    # What holds.

    @invariant()
    def the_target_is_what_was_committed(self) -> None:
        """INV-1, INV-2, I1, I2."""
        committed: dict[tuple[int, int], int] = {}
        chains: dict[int, list[tuple[int | None, int]]] = {}
        for partition, start, until, epoch_id in self.query(
            "SELECT partition, start_offset, until_offset, epoch_id FROM epochline.committed_range"
            " WHERE pipeline = %(pipeline)s"
        ):
            chains.setdefault(partition, []).append((start, until))
            if start is not None:
                committed |= {(partition, offset): epoch_id for offset in range(start, until)}
        for chain in chains.values():
            assert chain_breaks(chain) == []
        good, bad = (
            sorted((*record, epoch) for record, epoch in committed.items() if is_poison(record[1]) is poison)
            for poison in (False, True)
        )
        assert sorted(self.query(f'SELECT _partition, _offset, _epoch FROM "{self.name}"')) == good
        quarantine = 'SELECT partition, "offset", epoch_id FROM epochline.quarantine WHERE pipeline = %(pipeline)s'
        assert sorted(self.query(quarantine)) == bad

    @invariant()
    def epochs_keep_their_word(self) -> None:
        """INV-3, INV-5, INV-6: one unfinished epoch; what is committed, planned or fenced does not change."""
        epochs = self.query(
            "SELECT epoch_id, state, committed_at, rows_written, (SELECT array_agg((partition, start_offset,"
            " until_offset)::text ORDER BY partition) FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) ="
            " (e.pipeline, e.epoch_id)) FROM epochline.epoch e WHERE pipeline = %(pipeline)s ORDER BY epoch_id"
        )
        assert sum(state in ("PLANNED", "PRE_COMMITTED") for _, state, *_ in epochs) <= 1
        for epoch_id, *now, ranges in epochs:
            assert self.kept.setdefault(("ranges", epoch_id), ranges) == ranges
            was = self.kept.setdefault(("committed", epoch_id), now)
            assert was[0] != "COMMITTED" or was == now
            self.kept["committed", epoch_id] = now
        for attempt_id, parts in self.query(
            "SELECT attempt_id, (SELECT count(*) FROM epochline.part p WHERE p.attempt_id = a.attempt_id)"
            " FROM epochline.attempt a WHERE pipeline = %(pipeline)s AND (fenced_at IS NOT NULL OR sealed_at IS NOT NULL)"
        ):
            assert self.kept.setdefault(("parts", attempt_id), parts) == parts, "INV-4: a part came late"

    @invariant()
    def staging_is_accounted_for(self) -> None:
        """INV-5, I6: what is sealed keeps its staging, what is committed leaves none, and no table is unknown."""
        registered = self.query(
            "SELECT s.table_name, e.state, a.fenced_at IS NOT NULL FROM epochline.staging s"
            " JOIN epochline.attempt a USING (attempt_id) JOIN epochline.epoch e USING (pipeline, epoch_id)"
            " WHERE a.pipeline = %(pipeline)s AND s.dropped_at IS NULL"
        )
        there = self.query(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'epochline_staging'::regnamespace"
            " AND c.relkind = 'r' AND NOT EXISTS (SELECT FROM epochline.staging s JOIN epochline.attempt a USING"
            " (attempt_id) WHERE s.table_name = c.relname AND a.pipeline <> %(pipeline)s)"
        )
        assert {name for name, *_ in registered} == {name for (name,) in there}
        assert not [name for name, state, _ in registered if state == "COMMITTED"]
        if self.query("SELECT FROM epochline.epoch WHERE pipeline = %(pipeline)s AND state = 'PRE_COMMITTED'"):
            assert [name for name, state, fenced in registered if state == "PRE_COMMITTED" and not fenced]

    def teardown(self) -> None:
        """I7: everybody is dead; one more run after the other commits everything that is there."""
        try:
            if self.kafka.views:
                self._finish()
        finally:
            self.connection.close()

    def _finish(self) -> None:
        self.lease_expires()
        for number in itertools.count(1):
            who = f"last {number}"
            if self._plan(who).outcome is PlanOutcome.NOTHING_TO_READ:
                break
            self._pre_commit(who)
            self.line.commit(self.epoch_of[who])
        self.the_target_is_what_was_committed()
        self.epochs_keep_their_word()
        self.staging_is_accounted_for()
        with self.ledger.transaction() as tx:
            heads = {head.tp.partition: head.next_offset for head in tx.chain.heads(self.name, 1)}
        assert heads == {partition: view.last_stable for (_, partition), view in self.kafka.views.items()}


@pytest.mark.timeout(300 + 4 * EXAMPLES)  # `make test-all` asks for 300, a second or two each
def test_no_history_loses_or_doubles_a_record(new_database: Callable[[], str]) -> None:
    """INV-1 to INV-7: plan, begin, write, seal, commit, abort, recover, expire, at once, with lost answers."""
    run_machine(
        type("MachineOnPostgres", (LedgerMachine,), {"dsn": new_database()}),
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None, database=None,
            # A few histories are always the same ones: chance may not decide whether they meet what they must.
            derandomize="EPOCHLINE_MACHINE_EXAMPLES" not in os.environ,
            # Threads of `at_once` decide what a later step finds, so that no history can be replayed or made smaller.
            phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip

    of_tasks = {f"{task} after a lost answer" for task in ("begin", "seal", "abort")}
    missing = {"part refused", "plan planned", "sealed", "commit committed", "abort aborted", *of_tasks}
    missing |= {"commit already_committed after a lost answer", "recovery committed epoch", "recovery aborted epoch"}
    missing -= set(+LedgerMachine.met)
    assert not missing, f"{EXAMPLES} histories never met {missing}, only {dict(LedgerMachine.met)}"
