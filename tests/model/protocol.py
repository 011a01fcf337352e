"""The model: two Airflow runs of one pipeline, their Spark jobs, an operator, a Kafka, and what can go wrong.

The tasks of a run are the product's own use cases (`tests.model.replay`). Here stands what is around them: which task
follows which, what a Spark job does, and the faults, of which a world allows a number per history:

retry
    a task is started again while its process is stopped anywhere; the old process goes on later, as a zombie.
clear
    the run is started again from its plan, in the same way, also after it was committed.
teardown
    ``abort_epoch`` of the run starts, whatever the run's other tasks do.
lease expires
    of the PLANNED epoch.
operator aborts, janitor comes
    processes of their own. The janitor does not wait: an ended lease is stale at once.
answer lost
    of a transaction of the ledger or of Kafka: it was committed or not, and its process cannot know.
straggler
    an executor that was given up writes a part again, under another number.
staging lost
    the sealed tables are gone (INV-6).
head moved
    somebody else appends to the chain (an operator declares a loss).

A world with a topic publishes after each commit (`tests.model.topic`). A process that stops anywhere and never goes on
is one that was killed, so that crashes need no fault.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text, errors
from epochline.coordinator import abort, begin, commit, plan, publish, seal
from epochline.coordinator.intent import Plan, PlanOutcome, PlanRequest
from epochline.operations.janitor import Tidied, tidy
from epochline.protocol.epoch import UNFINISHED, AbortOutcome, CommitOutcome, EpochState, Run
from tests.in_memory.ledger import FakeLedger
from tests.in_memory.rows import Rows
from tests.model.guards import Guards
from tests.model.invariants import check_change, check_reads, check_rows
from tests.model.replay import Lock, Session, Stand, Step, take_step
from tests.model.tables import LONG_AGO, NAME, STATE, Reads, Violation, clone, freeze, heads_of, transaction_of_job
from tests.model.topic import OUT, KafkaWithTopic, check_published, check_topic

V = TypeVar("V")
TOPIC = "t"
LEASE = timedelta(0)
"""No process waits for a live lease in the model: it fails retryably at once."""

FAULTS = (
    "retry", "clear", "teardown", "lease expires", "operator aborts", "janitor comes", "answer lost", "straggler",
    "staging lost", "head moved",
)  # fmt: skip

ANY = frozenset(FAULTS) - {"head moved"}

TOLERATED: dict[type[errors.EpochlineError], tuple[str, ...]] = {
    errors.EpochBusyError: (),
    errors.PlanChangedError: (),
    errors.EpochFencedError: (),
    errors.EpochStateError: (),
    errors.LedgerUnavailableError: ("answer lost",),
    errors.LockTimeoutError: (),
    errors.SealRefusedError: ("straggler",),
    errors.StagingLostError: ("staging lost",),
    errors.HeadMovedError: ("head moved",),
    errors.SinkUnavailableError: (),
}
"""How a task may fail, and which faults must be possible for it. Any other error stops a pipeline without a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    name: str
    faults: Set[str] = ANY
    most_faults: int = 1
    startup: str = "earliest"
    records: tuple[int, int] = (1, 1)
    produced: int = 0
    limit: int | None = None
    """Record limit of an epoch."""
    tries: int = 1
    """How often a plan looks again before it fails retryably."""
    runs: int = 2
    state: bool = False
    topic: bool = False
    backup: bool = False
    """Whether the ledger is set back, from every state on, to every earlier one (P11)."""
    after_its_end: bool = False
    """Whether a run is cleared and torn down only when its tasks have ended; else whatever they do."""
    recovers: bool = True
    """Whether everything is committed from every state on without a human; a head moved by hand needs one."""
    takes_long: bool = False
    """Whether it is searched by `make model` and `make test-all` only."""
    sometimes: Set[str] = frozenset()
    """What must be met on the way, or the search proves nothing about it."""


class RunOf(NamedTuple):
    """One Airflow run: its task, its epoch as XCom carries it, its process, and a process it lost sight of."""

    task: str = "plan"
    epoch: int | None = None
    process: int | None = None
    zombie: int | None = None
    ended: str | None = None


class Job(NamedTuple):
    """One Spark job, or an executor of one that was given up (``straggler``)."""

    attempt: int
    reads: Reads | None = None
    held: int = 0
    """Which epoch's state it found."""
    part: int = 0
    copied: bool = False
    ended: bool | None = None
    straggler: bool = False


class State(NamedTuple):
    """Where everything is; numbers stand for interned values."""

    rows: int
    kafka: int
    runs: tuple[RunOf, ...]
    operator: int | None
    jobs: tuple[Job, ...]
    faults: int
    produced: int
    backup: int | None = None
    """The tables as they were when a backup was taken."""


Kind = tuple[Any, ...]
"""What a process does: the name of its use case, and what it is called with."""

Label = str | tuple[str, str, int, str, Step]
"""What a step is called; a step of a run is described only when it is shown (`Protocol.describe`)."""

Held = frozenset[tuple[Lock, int | None]]
"""Which process holds which lock."""


_JANITOR = Run(dag_id="janitor", run_id="janitor", host="h")
_OPERATOR = Run(dag_id="cli", run_id="operator", host="h")


@cache
def _run(number: int) -> Run:
    return Run(dag_id="d", run_id=f"run {number}", host="h")


class _Table(Generic[V]):
    """Values under numbers, the same number for equal values."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[V] = []

    def number(self, key: Any, value: V) -> tuple[int, bool]:
        number = self._numbers.setdefault(key, len(self.values))
        new = number == len(self.values)
        if new:
            self.values.append(value)
        return number, new


class _Process(NamedTuple):
    kind: Kind
    stand: Stand


class _Taken(NamedTuple):
    """What a step led to."""

    process: int | None
    rows: int
    kafka: int
    step: Step


@dataclass
class Protocol:
    """The model under one world's bounds and the guards in force."""

    world: Bounds
    guards: Guards
    met: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        sink = PostgresTable(table="target", columns={"value": "text"})
        self.pipeline = Pipeline(
            name=NAME, source=KafkaSource(topics=TOPIC, startup=self.world.startup), parse=Text(),
            sinks=[sink, OUT] if self.world.topic else [sink],
        )  # fmt: skip
        if self.world.state:
            state = StateTable(table=STATE, key="value", columns={"value": "text"})
            self.pipeline = self.pipeline.model_copy(update={"state": (state,)})
        self._rows, self._kafkas, self._processes = _Table[Rows](), _Table[KafkaWithTopic](), _Table[_Process]()
        self._steps: dict[tuple[Any, ...], _Taken | None] = {}
        self._job_steps: dict[tuple[Any, ...], tuple[str, Job, int]] = {}
        self._starts: dict[Kind, int] = {}
        self._locks: list[Held] = []
        self._not_moved = RunOf(process=self.start("plan", 0))

    # Numbers for values.

    def _number_rows(self, rows: Rows) -> int:
        number, new = self._rows.number(freeze(rows), rows)
        if new:
            check_rows(rows)
        return number

    def _number_kafka(self, kafka: KafkaWithTopic) -> int:
        return self._kafkas.number(freeze(kafka), kafka)[0]

    def _number_process(self, kind: Kind, stand: Stand) -> int:
        number, new = self._processes.number((kind, stand.key()), _Process(kind, stand))
        if new:
            self._locks.append(frozenset((lock, number) for lock in stand.locks))
        return number

    def start(self, *kind: Any) -> int:
        if kind not in self._starts:
            self._starts[kind] = self._number_process(kind, Stand())
        return self._starts[kind]

    # The first state.

    def first(self) -> State:
        ledger, kafka = FakeLedger(), KafkaWithTopic()
        with ledger.transaction() as tx:
            tx.targets.create(self.pipeline)
            tx.epochs.lock_pipeline(NAME)
        for partition, records in enumerate(self.world.records):
            kafka.produce(TOPIC, partition, records)
        runs = tuple(RunOf(process=self.start("plan", run)) for run in range(self.world.runs))
        return State(
            self._number_rows(ledger.rows), self._number_kafka(kafka), runs, None, (), self.world.most_faults,
            self.world.produced,
        )  # fmt: skip

    # The use cases.

    def use_case(self, kind: Kind) -> Callable[[Session], Any]:
        match kind:
            case "plan", run:
                request = PlanRequest(lease=LEASE, record_limit=self.world.limit)
                return lambda s: plan(s, s, self.pipeline, _run(run), request)
            case "pre_commit", run, epoch_id:
                return lambda s: self._pre_commit(s, _run(run), epoch_id)
            case "commit", _, epoch_id:
                return lambda s: commit(s, s, NAME, epoch_id)
            case "publish", *_:
                return lambda s: publish(s, self.pipeline)
            case "abort", run, epoch_id:
                return lambda s: abort(s, NAME, epoch_id, _run(run), reason="teardown")
            case "operator", epoch_id:
                return lambda s: abort(s, NAME, epoch_id, _OPERATOR, reason="decided", by_operator=True)
        return lambda s: tidy(s, _JANITOR, stale_after=timedelta(0), sleep=lambda _: None)

    @staticmethod
    def _pre_commit(session: Session, run: Run, epoch_id: int) -> str:
        """What the operator does: begin, wait for Spark, seal."""
        ticket = begin(session, NAME, epoch_id, run, lease=LEASE)
        if ticket is None:
            return "not needed"
        if not session.job(ticket):
            raise errors.EpochFencedError("the job was refused")
        seal(session, session, ticket, run)
        return "sealed"

    # Steps.

    def next(self, state: State) -> Iterator[tuple[Label, State]]:
        """Every state that one step leads to, and what the step is called."""
        held = self._held(state)
        for at, run in enumerate(state.runs):
            if at and state.runs[0] == self._not_moved:
                break  # The runs are alike until one has moved.
            yield from self._of_run(state, at, run, held)
        if state.operator is not None:
            yield from self._of_operator(state, state.operator, held)
        for at, job in enumerate(state.jobs):
            if job.ended is None:
                yield self._of_job(state, at, job)
        if state.faults:
            yield from self._faults(state)
        if state.produced:
            kafka: KafkaWithTopic = clone(self._kafkas.values[state.kafka])
            kafka.produce(TOPIC, 0, 1)
            yield "a record is produced", state._replace(kafka=self._number_kafka(kafka), produced=state.produced - 1)
        if self.world.backup and state.backup is None:
            yield "a backup is taken", state._replace(backup=state.rows)

    def _held(self, state: State) -> Held:
        """Which process holds which lock, and which job a staging table."""
        tables = [(("staging", job.attempt), None) for job in state.jobs if job.copied and job.ended is None]
        processes = [state.operator, *(number for run in state.runs for number in (run.process, run.zombie))]
        return frozenset(tables).union(*(self._locks[number] for number in processes if number is not None))

    def _take(self, state: State, number: int, held: Held, answer: str) -> _Taken | None:
        process = self._processes.values[number]
        others = frozenset(lock for lock, holder in held if holder != number)
        job_ended = None
        if process.stand.waits_for is not None:
            jobs = [one for one in state.jobs if one.attempt == process.stand.waits_for and not one.straggler]
            job_ended = jobs[0].ended
            if job_ended is None:
                return None
        key = (number, state.rows, state.kafka, others, answer, job_ended, state.produced > 0)
        if key not in self._steps:
            self._steps[key] = self._taken(process, state, others, answer, bool(job_ended))
        return self._steps[key]

    def _taken(
        self, process: _Process, state: State, others: frozenset[Lock], answer: str, job_ended: bool
    ) -> _Taken | None:
        before, kafka = self._rows.values[state.rows], self._kafkas.values[state.kafka]
        session = Session(
            process.stand, before, kafka, self.guards, held=others, answer=answer, job_ended=job_ended,
            logs_change=state.produced > 0,
        )  # fmt: skip
        step = take_step(self.use_case(process.kind), session)
        self.met |= session.met
        if step is None or (answer != "ok" and not step.committed):
            return None
        if step.wrote:
            check_change(before, step.rows, by_operator=process.kind[0] == "operator")
        if step.stand is None:
            self._meet(process.kind, step)
        return _Taken(
            process=None if step.stand is None else self._number_process(process.kind, step.stand),
            rows=self._number_rows(step.rows) if step.wrote else state.rows,
            kafka=state.kafka if step.kafka is kafka else self._number_kafka(step.kafka),
            step=step,
        )

    def _after(self, state: State, taken: _Taken) -> State:
        """The state with what a step did to tables, Kafka and jobs."""
        step, jobs = taken.step, state.jobs
        if step.ended_sessions:
            jobs = tuple(
                job._replace(ended=False, copied=False)
                if job.attempt in step.ended_sessions and job.copied and job.ended is None
                else job
                for job in jobs
            )
        if step.spawned is not None:
            jobs = _added(jobs, Job(step.spawned.attempt_id))
        return state._replace(rows=taken.rows, kafka=taken.kafka, jobs=jobs)

    def _answers(self, state: State) -> tuple[str, ...]:
        return ("ok", "lost", "never") if state.faults and "answer lost" in self.world.faults else ("ok",)

    def _of_run(self, state: State, at: int, run: RunOf, held: Held) -> Iterator[tuple[Label, State]]:
        for slot, number in (("process", run.process), ("zombie", run.zombie)):
            if number is None:
                continue
            for answer in self._answers(state):
                taken = self._take(state, number, held, answer)
                if taken is None:
                    continue
                after = self._after(state, taken)
                if answer != "ok":
                    after = after._replace(faults=state.faults - 1)
                if slot == "zombie":
                    new = run._replace(zombie=taken.process)
                elif taken.process is not None:
                    new = run._replace(process=taken.process)
                else:
                    new = self._task_ended(at, run, taken.step)
                yield ("AB"[at], slot, number, answer, taken.step), after._replace(runs=_swapped(state.runs, at, new))

    def describe(self, label: Label) -> str:
        if isinstance(label, str):
            return label
        who, slot, number, answer, step = label
        said = f"{who}'s {'zombie ' if slot == 'zombie' else ''}{self._processes.values[number].kind[0]} goes on"
        if answer != "ok":
            said += f", the answer of its transaction is lost ({answer})"
        return said if step.stand is not None else f"{said} and ends: {_outcome(step)}"

    def _task_ended(self, at: int, run: RunOf, step: Step) -> RunOf:
        if step.error is not None and run.task == "plan" and step.error.retryable:
            return run._replace(process=self.start("plan", at))  # Airflow tries again by itself.
        if step.error is not None:
            return run._replace(process=None, ended="failed")
        if run.task == "plan":
            planned: Plan = step.value
            if planned.epoch is None:
                return self._published(at, run) if self.world.topic else run._replace(process=None, ended="skipped")
            epoch = planned.epoch.epoch_id
            return run._replace(task="pre_commit", epoch=epoch, process=self.start("pre_commit", at, epoch))
        if run.task == "pre_commit":
            return run._replace(task="commit", process=self.start("commit", at, run.epoch))
        if run.task == "commit" and self.world.topic:
            return self._published(at, run)
        return run._replace(process=None, ended="aborted" if run.task == "abort" else "success")

    def _published(self, at: int, run: RunOf) -> RunOf:
        return run._replace(task="publish", process=self.start("publish", at, run.epoch))

    def _of_operator(self, state: State, number: int, held: Held) -> Iterator[tuple[Label, State]]:
        taken = self._take(state, number, held, "ok")
        if taken is not None:
            label = f"the {self._processes.values[number].kind[0]} goes on"
            yield label, self._after(state, taken)._replace(operator=taken.process)

    # A Spark job: copy and insert the part, partition by partition; then manifests and end mark.

    def _of_job(self, state: State, at: int, job: Job) -> tuple[str, State]:
        key = (job, state.rows, state.kafka if not self.guards.intent_is_read else None)
        if key not in self._job_steps:
            self._job_steps[key] = self._job_step(job, state)
        label, new, rows = self._job_steps[key]
        over = new.straggler and new.ended is not None
        jobs = (*state.jobs[:at], *state.jobs[at + 1 :]) if over else _swapped(state.jobs, at, new)
        return label, state._replace(rows=rows, jobs=jobs)

    def _job_step(self, job: Job, state: State) -> tuple[str, Job, int]:
        before = self._rows.values[state.rows]
        tx = transaction_of_job(before, self._kafkas.values[state.kafka], self.guards)
        who = f"{'a straggler' if job.straggler else 'the job'} of attempt {job.attempt}"
        reads, held = (job.reads, job.held) if job.reads is not None else tx.reads_of(job.attempt)
        if job.reads is None:
            check_reads(before, job.attempt, reads)
            job = job._replace(reads=reads, held=held)
        if not job.copied and job.part < len(reads):
            if not tx.has_staging(job.attempt):
                self.met.add("a writer finds its staging gone")
                return f"{who} finds no staging", job._replace(ended=False), state.rows
            return f"{who} copies part {job.part}", job._replace(copied=True), state.rows
        if job.copied:
            accepted = tx.insert_part(job.attempt, reads[job.part], None if job.part else held)
            self.met.add(f"part of {who.rpartition(' of ')[0]} {'accepted' if accepted else 'refused'}")
            ended = job.ended if accepted and not job.straggler else accepted
            new = job._replace(part=job.part + 1, copied=False, ended=ended)
            label = f"{who} inserts part {job.part}{'' if accepted else ': refused'}"
        else:
            accepted = tx.end_of(job.attempt, reads)
            new = job._replace(ended=accepted)
            label = f"{who} writes its end mark{'' if accepted else ': refused'}"
        return label, new, self._number_rows(tx.rows)

    # Faults.

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        less, faults = state._replace(faults=state.faults - 1), self.world.faults
        for at, run in enumerate(state.runs):
            for label, new in self._restarts(at, run):
                yield label, less._replace(runs=_swapped(state.runs, at, new))
        rows = self._rows.values[state.rows]
        unfinished = next((epoch for epoch in rows.epochs.values() if epoch.state in UNFINISHED), None)
        if "lease expires" in faults and unfinished and unfinished.state is EpochState.PLANNED:
            key = (NAME, unfinished.epoch_id)
            if rows.leases[key] != LONG_AGO:
                changed: Rows = clone(rows)
                changed.leases[key] = LONG_AGO
                yield "the lease expires", less._replace(rows=self._number_rows(changed))
        if state.operator is None and rows.epochs:
            if "operator aborts" in faults:
                newest = max(epoch_id for _, epoch_id in rows.epochs)
                yield "an operator aborts", less._replace(operator=self.start("operator", newest))
            if "janitor comes" in faults:
                yield "the janitor starts", less._replace(operator=self.start("janitor"))
        if "straggler" in faults:
            for job in state.jobs:
                if job.reads and not job.straggler:
                    again = Job(job.attempt, reads=job.reads, held=job.held, straggler=True)
                    label = f"an executor of attempt {job.attempt} is given up"
                    yield label, less._replace(jobs=_added(state.jobs, again))
        if "staging lost" in faults and unfinished and unfinished.state is EpochState.PRE_COMMITTED:
            live = next(row for row in rows.attempts.values() if row.attempt.sealed and not row.attempt.fenced)
            if live.tables[0].table in rows.staging:
                changed = clone(rows)
                del changed.staging[live.tables[0].table]
                yield "the sealed staging is lost", less._replace(rows=self._number_rows(changed))
        if "head moved" in faults and rows.chains:
            chain, links = next(iter(rows.chains.items()))
            until = max(link[1] for link in links)
            if until < self._kafkas.values[state.kafka].views[TOPIC, chain[2].partition].last_stable:
                changed = clone(rows)
                changed.chains[chain].append((until, until + 1, None))
                yield "the head is moved", less._replace(rows=self._number_rows(changed))

    def _restarts(self, at: int, run: RunOf) -> Iterator[tuple[str, RunOf]]:
        if self.world.after_its_end and run.process is not None:
            return
        fresh = self.start(run.task, at, run.epoch) if run.task != "plan" else self.start("plan", at)
        if run.process == fresh:
            return  # It has not moved: starting it again changes nothing.
        old = run._replace(ended=None, zombie=run.zombie if run.process is None else run.process)
        who = "AB"[at]
        if "retry" in self.world.faults and run.ended in (None, "failed"):
            yield f"{who}'s {run.task} is retried", old._replace(process=fresh)
        if "clear" in self.world.faults and run.task != "plan":
            yield f"{who} is cleared", old._replace(task="plan", process=self.start("plan", at))
        if "teardown" in self.world.faults and run.epoch is not None and run.task != "abort":
            yield f"{who} is torn down", old._replace(task="abort", process=self.start("abort", at, run.epoch))

    # What was met, and what must not be.

    def _meet(self, kind: Kind, step: Step) -> None:
        """Note how a process ended, which must not stop the pipeline without a reason nor plan without an origin."""
        self.met.add(f"{kind[0]}: {_outcome(step)}")
        if step.error is not None:
            needed = TOLERATED.get(type(step.error))
            if needed is None or not self.world.faults >= {*needed}:
                raise Violation(f"{kind[0]} stops without a reason: {type(step.error).__name__}: {step.error}")
            return
        if isinstance(step.value, Tidied) and step.value.ended:
            self.met.add("janitor: ended an epoch")
        if isinstance(step.value, Plan):
            for note in step.value.notes:
                for said in ("committed epoch", "aborted epoch", "is not tried again", "rows were sealed for"):
                    if said in note:
                        self.met.add(f"plan notes: {said}")
            if len(heads_of(step.rows)) < len(self.world.records):
                raise Violation("S9: a plan ended and the origin of a partition is not on record")

    # What is checked in every state.

    def check(self, state: State) -> None:
        """Hold a state against what must be true of ledger and topic together, and of what comes after it."""
        if self.world.topic:
            check_topic(self._rows.values[state.rows], self._kafkas.values[state.kafka].broker)
        if self.world.recovers:
            self._check_recovery(state)
        if state.backup is not None:
            self._check_set_back(state, state.backup)

    def _check_set_back(self, state: State, backup: int) -> None:
        """When the ledger is the backup and the topic is today's, later runs stop, or the topic is still exact (P11).

        The consumer group, which would show it, has expired: it is for monitors.
        """
        later = _LaterRuns(self, clone(self._rows.values[backup]), clone(self._kafkas.values[state.kafka]), "restored-")
        later.kafka.groups.clear()
        later.kafka.groups_kept = None
        try:
            later.run(itertools.count())
        except (errors.LedgerBehindError, errors.SinkAheadError):
            self.met.add("a ledger set back is refused")
            return
        check_published(later.rows, later.kafka.broker)

    # From every state on, one more run commits everything that is there (I7).

    def _check_recovery(self, state: State) -> None:
        """When all processes are dead, one further run commits all records, without a human."""
        later = _LaterRuns(self, clone(self._rows.values[state.rows]), self._kafkas.values[state.kafka])
        for key in later.rows.leases:
            later.rows.leases[key] = LONG_AGO
        try:
            later.run(itertools.count(len(state.runs)))
        except (errors.LedgerBehindError, errors.SinkAheadError) as error:
            raise Violation(f"I7: all are dead, and a later run stops: {error}") from None
        check_rows(later.rows)
        if self.world.topic:
            check_published(later.rows, later.kafka.broker)
        heads = heads_of(later.rows)
        for head in heads:
            end = later.kafka.views[TOPIC, head.tp.partition].last_stable
            if head.next_offset != end:
                raise Violation(f"I7: all are dead, and later runs commit {head.tp} up to {head.next_offset} of {end}")
        if len(heads) != len(self.world.records):
            raise Violation("I7: all are dead, and a later run leaves a partition without its origin")


@dataclass
class _LaterRuns:
    """Runs one after the other, at once and undisturbed."""

    protocol: Protocol
    rows: Rows
    kafka: KafkaWithTopic
    era: str = ""

    def run(self, numbers: Iterable[int]) -> None:
        """Run until there is nothing to read; each run publishes what is due, as the last does.

        Raises:
            LedgerBehindError, SinkAheadError: the topic holds what the ledger does not know.
            Violation: a run fails otherwise.
        """
        for number in numbers:
            planned: Plan = self._do("plan", number)
            if planned.epoch is not None:
                self._do("pre_commit", number, planned.epoch.epoch_id)
                self._do("commit", number, planned.epoch.epoch_id)
            if self.protocol.world.topic:
                self._do("publish", number)
            if planned.outcome is PlanOutcome.NOTHING_TO_READ:
                break

    def _do(self, *kind: Any) -> Any:
        session = Session(Stand(), self.rows, self.kafka, self.protocol.guards, whole_job=self._whole_job, era=self.era)
        step = take_step(self.protocol.use_case(kind), session)
        assert step is not None
        if isinstance(step.error, errors.LedgerBehindError | errors.SinkAheadError):
            raise step.error
        if step.error is not None:
            raise Violation(f"I7: all are dead, and a later run's {kind[0]} fails: {step.error}")
        self.rows, self.kafka = step.rows, step.kafka
        return step.value

    def _whole_job(self, rows: Rows, attempt_id: int) -> Rows:
        tx = transaction_of_job(rows, self.kafka, self.protocol.guards)
        reads, held = tx.reads_of(attempt_id)
        for part, read in enumerate(reads):
            tx.insert_part(attempt_id, read, None if part else held)
        tx.end_of(attempt_id, reads)
        return tx.rows


def _swapped(items: tuple[V, ...], at: int, new: V) -> tuple[V, ...]:
    return (*items[:at], new, *items[at + 1 :])


def _added(jobs: tuple[Job, ...], new: Job) -> tuple[Job, ...]:
    return tuple(sorted((*jobs, new), key=lambda job: (job.attempt, job.straggler)))


def _outcome(step: Step) -> str:
    if step.error is not None:
        return type(step.error).__name__
    value = step.value
    if isinstance(value, Plan):
        return str(value.outcome)
    outcome = getattr(value, "outcome", value)
    return str(outcome) if isinstance(outcome, (CommitOutcome, AbortOutcome, str)) else "done"
