"""Histories of what happens to a pipeline from outside, over the real use cases and a real PostgreSQL.

Pipelines are of the kinds of `machine_kinds`: modes, windows, parsers, tombstones, lists, files, two by two.
Topics are truncated and made again, databases are put back, tables change hands, operators restore and extend back.
Tasks lose their connections, die, run at once, and write when they were fenced long ago. Some records are bad until the
parse is mended; then operators requeue them. After every step the target holds what a simple model makes of the records
that the standing epochs read, and no row twice, nor does the folder of files; in the end every record that Kafka still
has, from the origin on, is there once or in the quarantine, and an audit finds nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import mended
from epochline import Files, KafkaSource, Pipeline
from epochline.coordinator import Plan, PlanOutcome
from epochline.coordinator.discard import sweep
from epochline.errors import (
    ActionRefusedError,
    DataLossError,
    EpochBusyError,
    EpochFencedError,
    EpochStateError,
    KafkaBehindError,
    LedgerBehindError,
    LedgerUnavailableError,
    PlanChangedError,
    SealRefusedError,
    TargetError,
)
from epochline.operations import Request
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import PlannedRange
from epochline.sinks.file_manifest import committed_files
from tests.databases import copy_database, query
from tests.driver import epoch_of
from tests.in_memory.kafka import FakeKafka
from tests.integration import auditing
from tests.integration.bench import LINEAGE
from tests.integration.guarantee import broken
from tests.integration.in_process import InProcess
from tests.integration.machine_kinds import COLUMNS, KINDS, WINDOWS, Kind, Row
from tests.integration.machine_world import HeldByKafka, Lossy, Servers, WithSpark
from tests.reading import source_batch

STEPS = 25
LEASE = timedelta(0)
"""The next plan may take over what was left."""
ORDER = Request(actor="ada@here", reason="a made-up history")
PARTITIONS = (0, 1)
TASKS = ("plan", "stage and seal", "commit", "abort")
NAMED = "coalesce(convert_from(value, 'UTF8'), 'gone ' || (convert_from(key, 'UTF8')::jsonb ->> 'n'))"
"""The name of a quarantined record in SQL."""
REFUSALS = (EpochBusyError, PlanChangedError, EpochFencedError, EpochStateError, SealRefusedError)
"""How a step may fail of those that run at once. Anything else is a defect: nothing deadlocks."""

SEED, SHRINK = "EPOCHLINE_MACHINE_SEED", "EPOCHLINE_MACHINE_SHRINK"

_numbers = itertools.count(1)


class OperatorsMachine(RuleBasedStateMachine):
    """One table, the pipelines that write it one after the other, and everything that operators can do."""

    database: Callable[[], str]
    with_spark: Callable[..., InProcess]
    """Makes the jobs of pipelines that need Spark."""
    superuser: str = ""
    met: Counter[str] = Counter()
    """What happened in all histories: without it a history that does nothing would pass."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = Kind()
        self.dsn = type(self).database()
        self.folder = Path(tempfile.mkdtemp(prefix="epochline-machine-"))
        self.kafka = FakeKafka()
        self.contents: dict[int, list[str]] = {}
        self.read_by: dict[tuple[str, int], list[str]] = {}
        """What the last attempt of each epoch read."""
        self.before: list[Row] = []
        """What the table held before its first pipeline."""
        self.kept: dict[tuple[str, str, int], Any] = {}
        """What was said of epochs and attempts, by what it is, pipeline and id."""
        self.backup: tuple[InProcess, Any] | None = None
        self.savepoints: list[str] = []
        self.adopts_at_the_end = False
        self.lives = 0
        mended.MENDED = False

    # The world.

    @initialize(kind=st.sampled_from(KINDS), startup=st.sampled_from(["earliest", "latest"]), existing=st.booleans())
    def a_pipeline(self, startup: str, existing: bool, kind: Kind | None = None, files: bool | None = None) -> None:
        self.kind = kind or Kind()
        self.startup, self.files = startup, self.kind.files if files is None else files
        self.met[str(self.kind)] += 1
        if existing and self.kind.mode == "append":
            self._sql(f"CREATE TABLE t (k text, n bigint, value text{LINEAGE})")
            self._sql("INSERT INTO t (value) VALUES ('old 1'), ('old 2')")
            self.before = [(None, None, "old 1"), (None, None, "old 2")]
        self._begin_topic("orders-1")
        self._declare()
        self._do_what_the_kind_says()

    def _do_what_the_kind_says(self) -> None:
        """Each pair of kinds of things to do happens in some history, whatever the rules draw."""
        if not (self.kind.requeue or self.kind.savepoint):
            return
        for partition in PARTITIONS:
            self._produce(partition, 3)
        self.produce_bad(0)
        self.produce_gone(1)
        if self.kind.savepoint:
            self.a_savepoint()
        self._produce(0, 3)
        self.produce_gone(0)
        self.a_run_goes_through()
        if self.kind.requeue:
            self.requeue()
            self.the_parse_is_mended()
            self.requeue()
        if self.kind.restore and self.savepoints:  # there is none of a pipeline that began at the latest record
            self._all_holds()
            self.restore_to(self.savepoints[-1])
        self._all_holds()

    def _begin_topic(self, topic: str) -> None:
        self.topic = topic
        for partition in PARTITIONS:
            self.contents[partition] = []
            self.kafka.produce(topic, partition, 0)
            self._produce(partition, 2)

    def _declare(self) -> None:
        """The next pipeline that writes the table."""
        name = f"pipeline_{next(_numbers)}"
        sinks: list[Any] = [self.kind.table]
        if self.files:
            sinks.append(Files(path=str(self.folder / name), columns=COLUMNS, format="json"))
        source = KafkaSource(topics=self.topic, startup=self.startup)
        pipeline = Pipeline(name=name, source=source, sinks=sinks, bad_records="quarantine", **self.kind.parsing)
        made = self.with_spark if self.kind.mode == "windows" else InProcess
        self.job = made(self.dsn, pipeline, self.kafka, self._read)
        self.job.lease = LEASE
        self.job.create()
        self.savepoints = []

    def _produce(self, partition: int, records: int, what: str = "value") -> None:
        self.contents[partition] += [f"{what} {next(_numbers)}" for _ in range(records)]
        self.kafka.produce(self.topic, partition, records)

    def _read(self, one: PlannedRange) -> Iterator[pa.RecordBatch]:
        values = self.contents[one.tp.partition][one.range.start : one.range.until]
        self.read_by[self.reading] += [value for value in values if not self.kind.is_bad(value)]
        offsets, times = range(one.range.start, one.range.until), [datetime.fromtimestamp(0, UTC)] * len(values)
        keys, written = zip(*map(self.kind.written, values), strict=True) if values else ((), ())
        yield source_batch(one.tp, offsets, written, timestamp=times, key=keys)

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement, options="-c search_path=public")

    @property
    def name(self) -> str:
        return self.job.pipeline.name

    def _act(self, action: str, **asked: Any) -> None:
        self.job.act(action, ORDER, **asked)
        self.met[action] += 1

    # Runs.

    def _staged(self, planned: Plan, run: Run) -> None:
        """Stage and seal, unless that is done."""
        self.reading = (self.name, epoch_of(planned).epoch_id)
        ticket = self.job.begin(epoch_of(planned).epoch_id, run)
        if ticket is not None:
            self.read_by[self.reading] = []
            self.job.stage(planned, ticket)
            self.job.seal(ticket, run)

    def _run(self, record_limit: int | None = None) -> PlanOutcome:
        planned, run = self.job.asked_to_plan(lease=LEASE, record_limit=record_limit)
        if planned.epoch is not None:
            self._staged(planned, run)
            self.job.commit(planned)
            self.met["epoch"] += 1
        self._publish()
        return planned.outcome

    def _publish(self) -> None:
        if self.files:
            self.job.publish()

    def _go_on(self, record_limit: int | None = None) -> PlanOutcome:
        """What an operator does who reads the error of a plan; the outcome of the run that could be planned then."""
        try:
            return self._run(record_limit)
        except LedgerBehindError:
            self.met["behind"] += 1
            self._act("accept-ledger")
            return self._go_on()
        except KafkaBehindError as error:
            self.met["Kafka behind"] += 1
            self._act("adopt-topic", cluster=True, at="truncation" if "older mirror" in str(error) else "earliest")
            return self._go_on()
        except DataLossError as error:
            at = "truncation" if "truncated" in str(error) and "made again" not in str(error) else "earliest"
            if self.adopts_at_the_end:
                at = "latest"
            self._act("adopt-topic", topic=self.topic, at=at)
            return self._go_on()

    def _go_on_to_the_end(self) -> None:
        """After a ledger was accepted, an epoch ends where a sink ended: there are more than one."""
        for left in range(20, 0, -1):
            assert left > 1
            if self._go_on() is PlanOutcome.NOTHING_TO_READ:
                break

    @rule(partition=st.sampled_from(PARTITIONS), records=st.integers(1, 3))
    def produce(self, partition: int, records: int) -> None:
        self._produce(partition, records)

    @rule(partition=st.sampled_from(PARTITIONS))
    def produce_bad(self, partition: int) -> None:
        self._produce(partition, 1, "bad")

    @rule(partition=st.sampled_from(PARTITIONS))
    def produce_gone(self, partition: int) -> None:
        self._produce(partition, 1, "gone")

    @rule()
    def the_parse_is_mended(self) -> None:
        mended.MENDED = True
        self.met["mended"] += 1

    @rule()
    def requeue(self) -> None:
        """Before the parse is mended they are bad again."""
        self._go_on()
        run = Run(dag_id=self.name, run_id=f"again {next(_numbers)}", host="here")
        oldest = "SELECT min(generation) FROM epochline.quarantine WHERE requeued_by IS NULL"
        ((generation,),) = self._sql(f"{oldest} AND pipeline = '{self.name}'")
        try:
            planned = self.job.order("requeue", ORDER, run, everything=True, generation=generation)
        except ActionRefusedError:
            return
        quarantined = self._sql(
            f"SELECT {NAMED} FROM epochline.quarantined_record q JOIN epochline.requeue_claim c"
            ' USING (pipeline, generation, topic_id, partition, "offset")'
            f" WHERE q.pipeline = '{self.name}' AND c.epoch_id = {epoch_of(planned).epoch_id}"
        )
        self._staged(planned, run)
        self.read_by[self.reading] = [value for (value,) in quarantined if not self.kind.is_bad(value)]
        self.job.commit(planned)
        self._publish()
        self.met["requeued" if mended.MENDED else "bad again"] += 1

    @rule(at_the_end=st.booleans())
    def an_operator_adopts_logs_at_their_end(self, at_the_end: bool) -> None:
        """From now on; `extend-back` reads what that leaves out."""
        self.adopts_at_the_end = at_the_end

    @rule()
    def a_run_goes_through(self) -> None:
        self._go_on()

    @rule()
    def a_run_dies_after_its_seal(self) -> None:
        """The next plan commits what it sealed, unless the log is another one by then."""
        self._go_on()
        self._produce(0, 1)
        planned, run = self.job.asked_to_plan(lease=LEASE)
        if planned.epoch is not None:
            self._staged(planned, run)
            self.met["sealed and left"] += 1

    @rule(records=st.integers(1, 3))
    def a_run_reads_a_little(self, records: int) -> None:
        """What it leaves may be truncated before it is read."""
        self._go_on(records)

    def _planned(self) -> tuple[Plan, Run]:
        """A new epoch of a run of its own."""
        self._go_on_to_the_end()
        self._produce(0, 1)
        planned, run = self.job.asked_to_plan(lease=LEASE)
        assert planned.epoch is not None
        return planned, run

    @rule(at=st.sampled_from([1, 1, 2, 3]), happened=st.booleans(), again=st.sampled_from([True, True, False]))
    def each_task_loses_its_connection(self, at: int, happened: bool, again: bool) -> None:
        """At a commit, which happened or did not; the scheduler tries it again, at once or never."""
        for task in TASKS:
            self._loses_its_connection(task, at, happened, again)
            self._all_holds()

    def _loses_its_connection(self, task: str, at: int, happened: bool, again: bool) -> None:
        planned, run = self._planned()
        epoch_id = epoch_of(planned).epoch_id
        steps: dict[str, Callable[[], object]] = {
            "plan": lambda: self.job.plan(run, lease=LEASE),
            "stage and seal": lambda: self._staged(planned, run),
            "commit": lambda: self.job.commit(epoch_id),
            "abort": lambda: self.job.abort(epoch_id, run),
        }
        if task == "commit":
            self._staged(planned, run)
        ledger = self.job.ledger
        try:
            self.job.ledger = lossy = Lossy(ledger, at, happened)
            steps[task]()
        except LedgerUnavailableError:
            assert task != "commit", "a commit asks the ledger again by itself"
        finally:
            self.job.ledger = ledger
        self.met[f"{task} lost its answer"] += lossy.broke
        if again:
            steps[task]()

    @rule()
    def an_attempt_writes_on_that_was_fenced(self) -> None:
        planned, run = self._planned()
        fenced = self.job.attempt(planned, run)
        self._staged(planned, run)
        read_by = deepcopy(self.read_by)
        with pytest.raises(EpochFencedError):
            self.job.stage(planned, fenced)
        self.read_by = read_by
        self.job.commit(planned)
        self.met["fenced"] += 1

    @rule(by_operator=st.booleans())
    def two_commits_a_plan_an_abort_and_a_sweep_at_once(self, by_operator: bool) -> None:
        planned, run = self._planned()
        self._staged(planned, run)
        epoch_id, other = epoch_of(planned).epoch_id, self.job.run_of(f"another {next(_numbers)}")
        steps: list[Callable[[], object]] = [
            *[lambda: self.job.commit(epoch_id)] * 2, lambda: self.job.plan(other, lease=LEASE),
            lambda: self.job.abort(epoch_id, run, by_operator=by_operator), lambda: sweep(self.job.ledger, self.name),
        ]  # fmt: skip
        with ThreadPoolExecutor(len(steps)) as pool:
            for done in [pool.submit(step) for step in steps]:
                error = done.exception()
                if error is not None and not isinstance(error, REFUSALS):
                    raise error
        self.met["at once"] += 1

    # What happens to Kafka.

    @rule(records=st.integers(0, 3))
    def the_topic_is_made_again(self, records: int) -> None:
        self.lives += 1
        for partition in PARTITIONS:
            self.contents[partition] = []
            self.kafka.produce(self.topic, partition, 0, topic_id=f"life {self.lives}")
            self.kafka.leader_epochs.pop((self.topic, partition), None)
            self._produce(partition, records)
        self.met["made again"] += 1

    @rule(partition=st.sampled_from(PARTITIONS), lost=st.integers(1, 3), records=st.integers(0, 4))
    def a_log_is_truncated(self, partition: int, lost: int, records: int) -> None:
        end = max(0, len(self.contents[partition]) - lost)
        self.kafka.change_leader(self.topic, partition, truncate_to=end)
        del self.contents[partition][end:]
        self._produce(partition, records)
        self.met["truncated"] += 1

    @rule(lost=st.integers(1, 3), records=st.integers(0, 6))
    def kafka_is_put_back(self, lost: int, records: int) -> None:
        """To a cold copy of its disks, consumer groups included; other records come before the next run.

        The copy holds no record that was not read: those would be read twice.
        """
        self._go_on_to_the_end()
        kafka, contents = deepcopy((self.kafka.__dict__, self.contents))
        self._produce(0, lost)
        self._go_on()
        self.kafka.__dict__.update(kafka)
        self.contents = contents
        for partition in PARTITIONS:
            self._produce(partition, records)
        self.met["Kafka put back"] += 1

    # What happens to the database.

    @rule()
    def a_backup_is_made(self) -> None:
        copy_database(self.superuser, self._database, f"{self._database}_backup")
        self.backup = self.job, deepcopy((self.read_by, self.savepoints, self.before, self.kept))

    @precondition(lambda self: self.backup is not None and self.backup[0] is self.job)
    @rule()
    def the_backup_is_put_back(self) -> None:
        assert self.backup is not None
        copy_database(self.superuser, f"{self._database}_backup", self._database)
        self.read_by, self.savepoints, self.before, self.kept = deepcopy(self.backup[1])
        self.met["put back"] += 1

    @precondition(lambda self: self.kind.mode != "add")  # of which no row says its epoch
    @rule()
    def the_table_is_away_for_a_while(self) -> None:
        """Migrate puts no empty table in its place, if a standing epoch left rows in it."""
        left = self._sql(
            "SELECT 1 FROM epochline.epochs e JOIN t ON t._epoch = e.epoch_id WHERE e.state = 'COMMITTED'"
            f" AND e.undone_by IS NULL AND e.pipeline = '{self.name}' LIMIT 1"
        )
        self._sql("ALTER TABLE t RENAME TO away")
        if left:
            with pytest.raises(TargetError, match="target t is gone: it is named public.away now"):
                self.job.create()
            self.met["table away"] += 1
        self._sql("ALTER TABLE away RENAME TO t")

    @property
    def _database(self) -> str:
        return self.dsn.rpartition("/")[2]

    # What operators do.

    @rule()
    def a_savepoint(self) -> None:
        self._go_on()
        name = f"savepoint_{next(_numbers)}"
        self._refusable("savepoint", name=name)
        if self._sql(f"SELECT 1 FROM epochline.savepoints WHERE name = '{name}'"):
            self.savepoints.append(name)

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.restore_to(data.draw(st.sampled_from(self.savepoints)))

    def restore_to(self, savepoint: str) -> None:
        self._go_on()
        self._refusable("restore", name=savepoint)

    def _refusable(self, action: str, **asked: Any) -> None:
        try:
            self._act(action, **asked)
        except ActionRefusedError:
            self.met[f"{action} refused"] += 1

    @rule(step=st.sampled_from([None, 1]))
    def extend_back(self, step: int | None) -> None:
        self._go_on()
        run = Run(dag_id=self.name, run_id=f"back {next(_numbers)}", host="here")
        try:
            planned = self.job.order("extend-back", ORDER, run, to="earliest", step=step)
        except ActionRefusedError as refusal:
            if self.kind.mode not in ("append", "add") and "only rows of mode append and add" in str(refusal):
                self.met["extend-back refused"] += 1
                return
            if "they are back there" in str(refusal):
                self._go_on_to_the_end()
                held = {value for partition in PARTITIONS for value in self.contents[partition]}
                assert held - self._quarantined() <= set(itertools.chain(*self._standing()))
                self.met["all is back"] += 1
                return
            raise
        self._staged(planned, run)
        self.job.commit(planned)
        self._publish()
        self.met["extend-back"] += 1

    @precondition(lambda self: self.kind.mode == "append")
    @rule()
    def drop_and_take_over(self) -> None:
        """Another pipeline, of another topic, gets the table: not before somebody says what its rows are."""
        self._go_on()
        left = self._rows()
        lineage = self._sql("SELECT 1 FROM t WHERE _epoch IS NOT NULL LIMIT 1")
        self._act("drop")
        self._begin_topic(f"orders-{next(_numbers)}")
        self._declare()
        if lineage:
            with pytest.raises(TargetError, match="holds rows that another pipeline wrote"):
                self.job.asked_to_plan()
            names = "_topic, _partition, _offset, _row, _epoch"
            self._sql(f"UPDATE t SET ({names}) = (NULL, NULL, NULL, NULL, NULL) WHERE _epoch IS NOT NULL")
            self.met["taken over"] += 1
        self.before = list(left.elements())
        self.read_by = {}

    # What holds.

    def _quarantined(self) -> set[str]:
        aside = f"SELECT {NAMED} FROM epochline.quarantine WHERE requeued_by IS NULL"
        return {value for (value,) in self._sql(f"{aside} AND pipeline = '{self.name}'")}

    def _rows(self) -> Counter[Row]:
        return Counter(self._sql(f"SELECT {', '.join(self.kind.table.columns or ())} FROM {self.kind.held_by}"))

    def _shown(self) -> Counter[Row]:
        paths = [path for epoch in committed_files(str(self.folder / self.name)) for path in epoch.files]
        rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
        return Counter(tuple(row[name] for name in COLUMNS) for row in rows)

    def _standing(self) -> list[list[str]]:
        """The good records that each standing epoch read."""
        standing = self._sql(
            "SELECT pipeline, epoch_id FROM epochline.epochs WHERE state = 'COMMITTED' AND undone_by IS NULL"
            f" AND pipeline = '{self.name}' AND kind <> 'restore' ORDER BY epoch_id"
        )
        return [self.read_by.get(key, []) for key in standing]

    @invariant()
    def the_target_holds_what_the_standing_epochs_read(self) -> None:
        """INV-1, INV-2, I1."""
        there, expected = self._rows(), Counter(self.before) + self.kind.held(self._standing())
        assert there == expected, (there - expected, expected - there)
        if self.kind.mode in ("add", "windows"):
            return  # the page's checks ask each row for its record
        found = broken(self._sql, self.name, "t")
        # Rows of before are of no epoch, as the page's checks say; and upsert tables are written in a savepoint.
        found = {said: rows for said, rows in found.items() if rows != [(None, len(self.before))]}
        assert not [said for said in found if self.kind.mode == "append" or "of upsert tables" not in said], found

    @invariant()
    def the_windows_that_ended_are_shown(self) -> None:
        """INV-2, in the target of windows: as they are in the state."""
        if self.kind.mode != "windows":
            return
        shown, opened = (Counter(self._sql(f"SELECT {', '.join(WINDOWS)} FROM {table}")) for table in ("t", "t_open"))
        ((mark,),) = self._sql(
            "SELECT max(watermark) FROM epochline.epochs WHERE state = 'COMMITTED' AND undone_by IS NULL"
            f" AND pipeline = '{self.name}'"
        )
        assert shown == Counter(row for row in opened.elements() if mark is not None and row[2] <= mark)
        self.met["window shown"] += bool(shown)

    @invariant()
    def epochs_keep_their_word(self) -> None:
        """INV-3, INV-5, INV-6: what is planned, committed or fenced does not change."""
        for pipeline, epoch_id, state, committed_at, written, ranges in self._sql(
            "SELECT pipeline, epoch_id, state, committed_at, rows_written, (SELECT array_agg((partition, start_offset,"
            " until_offset)::text ORDER BY partition) FROM epochline.planned_range r WHERE (r.pipeline, r.epoch_id) ="
            " (e.pipeline, e.epoch_id)) FROM epochline.epoch e"
        ):
            assert self.kept.setdefault(("ranges", pipeline, epoch_id), ranges) == ranges
            was = self.kept.get(("committed", pipeline, epoch_id), (state, committed_at, written))
            assert was[0] != "COMMITTED" or was == (state, committed_at, written)
            self.kept["committed", pipeline, epoch_id] = (state, committed_at, written)
        for pipeline, attempt_id, parts in self._sql(
            "SELECT pipeline, attempt_id, (SELECT count(*) FROM epochline.part p WHERE p.attempt_id = a.attempt_id)"
            " FROM epochline.attempt a WHERE fenced_at IS NOT NULL OR sealed_at IS NOT NULL"
        ):
            assert self.kept.setdefault(("parts", pipeline, attempt_id), parts) == parts, "INV-4: a part came late"

    @invariant()
    def staging_is_accounted_for(self) -> None:
        """INV-5, I6: what is sealed keeps its staging, what is committed leaves none, and no table is unknown."""
        registered = self._sql(
            "SELECT s.table_name, e.state, a.fenced_at IS NOT NULL FROM epochline.staging s"
            " JOIN epochline.attempt a USING (attempt_id) JOIN epochline.epoch e USING (pipeline, epoch_id)"
            " WHERE s.dropped_at IS NULL"
        )
        there = self._sql(
            "SELECT relname FROM pg_class WHERE relnamespace = 'epochline_staging'::regnamespace AND relkind = 'r'"
        )
        assert {name for name, *_ in registered} == {name for (name,) in there}
        assert not [name for name, state, _ in registered if state == "COMMITTED"]
        unfinished = self._sql("SELECT state FROM epochline.epoch WHERE state IN ('PLANNED', 'PRE_COMMITTED')")
        assert len(unfinished) <= 1
        assert ("PRE_COMMITTED",) not in unfinished or ("PRE_COMMITTED", False) in {row[1:] for row in registered}

    @invariant()
    def nothing_is_there_twice(self) -> None:
        assert max(self._rows().values(), default=1) == 1
        assert max(self._shown().values(), default=1) == 1

    def _all_holds(self) -> None:
        self.the_target_holds_what_the_standing_epochs_read()
        self.the_windows_that_ended_are_shown()
        self.epochs_keep_their_word()
        self.staging_is_accounted_for()
        self.nothing_is_there_twice()

    def teardown(self) -> None:
        """Runs come until nothing is left; everything that Kafka has, from the origins on, is there."""
        try:
            if self.contents:
                self._finish()
        finally:
            shutil.rmtree(self.folder)

    def _finish(self) -> None:
        self._go_on_to_the_end()
        self._all_holds()
        heads = self._sql(f"SELECT partition, origin_offset FROM epochline.heads WHERE pipeline = '{self.name}'")
        origins = dict(heads)
        aside = self._quarantined()
        held = [value for partition in PARTITIONS for value in self.contents[partition][origins[partition] :]]
        held = [value for value in held if value not in aside]
        assert set(held) <= set(itertools.chain(*self._standing()))
        if self.files:
            # A folder that showed a range before the parse was mended is not given it again.
            good = [row for record in held if not record.startswith("bad") for row in self.kind.rows_of(record)]
            assert set(good) <= set(self._shown())
        assert self.audited() == []

    def audited(self) -> list[str]:
        """What an audit finds in a history of healthy data: nothing that a later step explains."""
        epochs = "SELECT 1 FROM epochline.epochs WHERE state = 'COMMITTED' AND undone_by IS NULL AND kind <> 'restore'"
        if not self._sql(f"{epochs} AND pipeline = '{self.name}'"):
            return []
        self.met["audit"] += 1
        return auditing.audited(self.dsn, self.name, HeldByKafka(self.kafka, self.kind, self.contents))


def machine(servers: Servers) -> type[OperatorsMachine]:
    """The machine on these servers."""
    made = {
        "database": staticmethod(servers.new_database), "superuser": servers.stack.postgres.superuser_dsn,
        "with_spark": staticmethod(partial(WithSpark, spark=servers.spark)),
    }  # fmt: skip
    return type("MachineOfOperators", (OperatorsMachine,), made)


def made_up(servers: Servers, histories: int, *, chosen_by: int | None = None) -> Counter[str]:
    """Run so many histories of `STEPS` steps, the same ones for a seed or without one; what happened in them."""
    chosen = machine(servers)
    try:
        run_machine(
            chosen if chosen_by is None else seed(chosen_by)(chosen),
            settings=settings(
                max_examples=histories, stateful_step_count=STEPS, deadline=None, derandomize=chosen_by is None,
                # A smaller history costs hundreds of runs of a second and more.
                phases=(Phase.generate, Phase.shrink) if os.environ.get(SHRINK) else (Phase.generate,),
                database=None, suppress_health_check=list(HealthCheck), print_blob=False,
            ),
        )  # fmt: skip
    except BaseException as error:
        error.add_note(f"{SEED}={chosen_by} gives these histories again, {SHRINK}=1 looks for the shortest one")
        raise
    assert OperatorsMachine.met["epoch"] > histories
    return +OperatorsMachine.met


def seed_of_histories() -> int:
    """The seed that somebody asks for, or a new one."""
    return int(os.environ.get(SEED) or secrets.randbits(32))
