"""Run the product's use cases one step at a time: stop before each call to the outside, and go on later elsewhere.

A process is a use case of `epochline.coordinator` and the answers that it got so far. To take its next step the use case
runs again from its beginning: it gets the same answers, then one step happens in the world as it is now.
So a process can be stopped anywhere (SIGSTOP, a slow broker, a scheduler that lost sight of it), and resumed in any
later state; never resuming it is kill -9.

A transaction is one step, because the rows it decides by are locked. The exception are reads that no lock covers, in a
transaction that holds the pipeline's row: under READ COMMITTED each of them sees what was committed by then, so each
is a step of its own, and meanwhile the transaction holds its locks and its writes are seen by itself alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction, isgeneratorfunction, signature, unwrap
from operator import attrgetter
from typing import Any, TypeVar
from unittest.mock import patch

from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError, LedgerUnavailableError
from epochline.ports import Transaction
from epochline.protocol.sink import Sink
from epochline.protocol.staging import StagingTicket
from tests.in_memory.rows import Rows
from tests.model.guards import Guards
from tests.model.tables import GuardedTransaction, Surroundings, clone, freeze
from tests.model.topic import Broker, KafkaWithTopic, topic_sink

R = TypeVar("R")

READS = frozenset(
    {
        "epochs.pipeline", "epochs.unfinished", "epochs.newest_of_run", "epochs.later_than", "epochs.ranges",
        "epochs.planned_targets", "epochs.declaration", "epochs.declarations", "epochs.last_declaration", "epochs.lock",
        "epochs.stale", "epochs.pipelines", "chain.heads", "chain.reached", "attempts.live", "attempts.ticket",
        "attempts.manifests", "attempts.part_sums", "attempts.seen", "attempts.left_over", "attempts.lock_attempt",
        "attempts.unexplained", "attempts.parts", "attempts.committed_token", "targets.inspect",
        "targets.free_connections", "targets.count", "targets.prepare", "targets.try_out", "targets.limit_time",
        "receipts.due", "receipts.completed", "receipts.unpublished", "receipts.accepted", "receipts.knows",
        "operators.standing", "history.settings",
    }
)  # fmt: skip
"""Methods of a transaction that write nothing; any other is taken for one that does."""

LOG_READS = frozenset({"look", "offsets_at", "leader_epoch_ends"})
"""What Kafka is asked about the logs of the source. It is no step of its own where no record will be produced."""

SIDES = frozenset(name for name, value in vars(Transaction).items() if isinstance(value, property))
"""The sides of a transaction."""

UNLOCKED = frozenset(
    {"epochs.unfinished", "epochs.newest_of_run", "epochs.later_than", "chain.heads", "attempts.left_over"}
)
"""Reads of rows that the pipeline's row lock does not cover: a commit needs none of it."""


Lock = tuple[Any, ...]


class Paused(BaseException):
    """The step is over; the use case goes on in a later one."""


class Blocked(BaseException):
    """The step would wait for a lock that another process holds: it cannot be taken now."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one transaction or one call of Kafka answered the use case."""

    answers: tuple[Any, ...]
    end: str = "ok"
    """Whether the answer came, or the name of the part of a use case whose result this is (`Session.in_one`)."""


@dataclass(frozen=True, slots=True)
class Stand:
    replies: tuple[Reply, ...] = ()
    open: tuple[Any, ...] | None = None
    locks: frozenset[Lock] = frozenset()
    waits_for: int | None = None
    """The attempt whose Spark job the process waits for."""

    def key(self) -> tuple[Any, ...]:
        """The same for processes that go on in the same way."""
        replies = tuple((freeze(one.answers), one.end) for one in self.replies)
        return replies, None if self.open is None else freeze(self.open), self.waits_for


@dataclass
class Step:
    """What one step did."""

    stand: Stand | None
    rows: Rows
    kafka: KafkaWithTopic
    value: Any = None
    error: EpochlineError | None = None
    spawned: StagingTicket | None = None
    ended_sessions: tuple[int, ...] = ()
    committed: bool = False
    """Whether a transaction was committed in the step, so that its answer could be lost."""
    wrote: bool = False


@dataclass
class Session:
    """Ledger, Kafka and Spark of one process for one step. Implements `epochline.ports.Ledger` and `OffsetSource`."""

    stand: Stand
    rows: Rows
    kafka: KafkaWithTopic
    guards: Guards
    held: frozenset[Lock] = frozenset()
    answer: str = "ok"
    job_ended: bool = False
    replies: list[Reply] = field(default_factory=list)
    moved: bool = False
    open: tuple[Any, ...] | None = None
    locks: frozenset[Lock] = frozenset()
    waits_for: int | None = None
    spawned: StagingTicket | None = None
    ended_sessions: tuple[int, ...] = ()
    committed: bool = False
    wrote: bool = False
    resumed: bool = False
    whole_job: Callable[[Rows, int], Rows] | None = None
    """Does a Spark job to its end, given tables and attempt. With it the process runs to its end in one step."""
    era: str = ""
    logs_change: bool = True
    """Whether another step may change the logs of the source."""
    met: set[str] = field(default_factory=set)
    at: int = 0
    """How many replies the use case got so far, with those that `in_one` has replaced."""

    def point(self) -> None:
        """What follows happens in the world: the first does so now, the next in a later step."""
        if self.moved and self.whole_job is None:
            raise Paused
        self.moved = True

    @property
    def _again(self) -> Reply | None:
        return self.stand.replies[self.at] if self.at < len(self.stand.replies) else None

    def _got(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.at += 1

    def in_one(self, part: str, does: Callable[[], R]) -> R:
        """Do a part of the use case; once it is over, its result stands for all that it was answered.

        So processes that came to one result in different ways are in one state.
        """
        again = self._again
        if again is not None and again.end == part:
            self._got(again)
            known: R = again.answers[0]
            return known
        begins = len(self.replies)
        result = does()
        self.replies[begins:] = [Reply((result,), part)]
        return result

    def _answered(self, happens: Callable[[], Reply], *, is_step: bool = True) -> Reply:
        """The answer of an earlier step; else what happens in the world now."""
        reply = self._again
        if reply is None:
            if is_step:
                self.point()
            reply = happens()
        self._got(reply)
        return reply

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        again = self._again
        if again is not None:
            self._got(again)
            yield _PastTransaction(again.answers)
            if again.end != "ok":
                raise LedgerUnavailableError("the connection was lost")
            return
        open_answers: tuple[Any, ...] = ()
        if self.stand.open is not None and not self.resumed:
            open_answers, self.resumed, self.moved = self.stand.open, True, True
        else:
            self.point()
        tx = _LiveTransaction(self, open_answers)
        try:
            yield tx
        except Paused:
            self.open, self.locks = tuple(tx.answers), frozenset(tx.locks)
            raise
        except EpochlineError:
            self._got(Reply(tuple(tx.answers)))
            raise
        end, self.answer, self.committed = self.answer, "ok", True
        if end != "never":
            if tx.wrote:
                self.rows, self.wrote = tx.inner.rows, True
            self.ended_sessions += tuple(tx.inner.ended_sessions)
        self._got(Reply(tuple(tx.answers), end))
        if end != "ok":
            raise LedgerUnavailableError("the connection was lost")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            def happens() -> Reply:
                kafka = clone(self.kafka) if name == "mirror" else self.kafka
                reply = Reply((getattr(kafka, name)(*args, **options),))
                self.kafka = kafka
                return reply

            return self._answered(happens, is_step=self.logs_change or name not in LOG_READS).answers[0]

        return call

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        return topic_sink(self, pipeline, name)

    def read(self, reads: Callable[[Rows, KafkaWithTopic], R]) -> R:
        """What tables and Kafka say now, read by a sink."""
        answer: R = self._answered(lambda: Reply((reads(self.rows, self.kafka),))).answers[0]
        return answer

    def request(self, does: Callable[[Broker], R], *, can_be_lost: bool) -> tuple[R, str]:
        """Change the topic: what its broker answers, and whether the answer came."""

        def happens() -> Reply:
            end, answer = "ok", None
            if can_be_lost:
                end, self.answer, self.committed = self.answer, "ok", True
            if end != "never":
                self.kafka = clone(self.kafka)
                answer = does(self.kafka.broker)
            return Reply((answer,), end)

        reply = self._answered(happens)
        return reply.answers[0], reply.end

    def job(self, ticket: StagingTicket) -> bool:
        if self.whole_job is not None:
            self.rows = self.whole_job(self.rows, ticket.attempt_id)
            return True
        if self._again is None and self.stand.waits_for is None:
            self.spawned, self.waits_for = ticket, ticket.attempt_id
            raise Paused
        return bool(self._answered(lambda: Reply((self.job_ended,))).answers[0])


class _PastTransaction:
    """A transaction that is over: it answers as it did."""

    def __init__(self, answers: tuple[Any, ...]) -> None:
        self._answers = iter(answers)

    def __getattr__(self, name: str) -> Any:
        if name in SIDES:
            return self

        def call(*_: Any, **__: Any) -> Any:
            answer = next(self._answers)
            if isinstance(answer, EpochlineError):
                raise answer
            return answer

        return call


class _LiveTransaction:
    """A transaction that happens now, perhaps after it stood open for a while."""

    def __init__(self, session: Session, given: tuple[Any, ...]) -> None:
        tables = frozenset(one[1] for one in session.held if one[0] == "staging")
        around = Surroundings(session.kafka, tables, session.guards, session.era)
        self.inner = GuardedTransaction(session.rows, around)
        self.answers: list[Any] = []
        self.locks: set[Lock] = set()
        self.wrote = False
        self._session, self._given = session, given
        self._covered = True

    def __getattr__(self, side: str) -> _LiveSide:
        if side not in SIDES:
            raise AttributeError(side)
        return _LiveSide(self, side)

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call ``SIDE.METHOD``, which is a step of its own if no lock covers what it reads."""
        at = len(self.answers)
        if at < len(self._given):
            if name not in READS and self._writes(name, args):
                self._method(name)(*args, **options)
            self._lock(name, args, self._given[at])
            return self._give(self._given[at])
        # The first live call of a transaction that stood open is the step itself.
        first_again = self._given and at == len(self._given)
        if name in UNLOCKED and ("pipeline",) in self.locks and not first_again and not self._covered:
            self._session.point()
        self._covered = False
        if name == "epochs.lock_pipeline":
            self._wait_for(("pipeline",))
            self._covered = True
        elif name == "epochs.lock":
            self._wait_for(("epoch", args[1]))
        if name not in READS:
            self._writes(name, args)
        try:
            answer = self._method(name)(*args, **options)
            if isinstance(answer, Iterator):
                answer = list(answer)  # One that is used up could not be given again.
        except EpochlineError as error:
            answer = error
        self._lock(name, args, answer)
        return self._give(answer)

    def _method(self, name: str) -> Any:
        return attrgetter(name)(self.inner)

    def _writes(self, name: str, args: tuple[Any, ...]) -> bool:
        """From the first write on the transaction has tables of its own."""
        if name == "epochs.lock_pipeline" and args[0] in self.inner.rows.pipelines:
            return False
        if name != "attempts.end_sessions" and not self.wrote:
            self.wrote, self.inner.rows = True, clone(self.inner.rows)
        return True

    def _wait_for(self, lock: Lock) -> None:
        if lock in self._session.held:
            raise Blocked

    def _lock(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "epochs.lock_pipeline":
            self.locks.add(("pipeline",))
        elif name == "epochs.lock" and not isinstance(answer, EpochlineError):
            self.locks.add(("epoch", args[1]))

    def _give(self, answer: Any) -> Any:
        self.answers.append(answer)
        if isinstance(answer, EpochlineError):
            raise answer
        return answer


class _LiveSide:
    """One side of a transaction that happens now."""

    def __init__(self, transaction: _LiveTransaction, side: str) -> None:
        self._transaction, self._side = transaction, side

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return self._transaction.call(f"{self._side}.{method}", args, options)

        return call


@contextmanager
def parts_in_one() -> Iterator[None]:
    """Let every function of the coordinator that acts on ledger or source, and returns, be a part (`Session.in_one`)."""
    with ExitStack() as patches:
        for module in [one for name, one in sys.modules.items() if name.startswith("epochline.coordinator.")]:
            for name, value in list(vars(module).items()):
                if isfunction(value) and value.__module__.startswith("epochline.coordinator.") and _is_part(value):
                    patches.enter_context(patch.object(module, name, _part(value)))
        yield


def _is_part(function: Callable[..., Any]) -> bool:
    first = next(iter(signature(function).parameters), None)
    return first in ("ledger", "source") and not isgeneratorfunction(unwrap(function))


def _part(function: Callable[..., R]) -> Callable[..., R]:
    @wraps(function)
    def part(session: Session, *args: Any, **options: Any) -> R:
        return session.in_one(function.__qualname__, lambda: function(session, *args, **options))

    return part


def take_step(use_case: Callable[[Session], Any], session: Session) -> Step | None:
    """Take one step of a process in the world as it is now; None if the process has to wait for a lock."""
    value, error, stand = None, None, None
    try:
        value = use_case(session)
    except Blocked:
        return None
    except Paused:
        stand = Stand(tuple(session.replies), session.open, session.locks, session.waits_for)
    except EpochlineError as raised:
        error = raised
    return Step(
        stand=stand, rows=session.rows, kafka=session.kafka, value=value, error=error, spawned=session.spawned,
        ended_sessions=session.ended_sessions, committed=session.committed, wrote=session.wrote,
    )  # fmt: skip
