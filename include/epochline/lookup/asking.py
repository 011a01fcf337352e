"""One round of look-ups: threads that ask, a caller that waits for each answer until its deadline and no longer."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Generic, NoReturn, TypeVar, cast

from epochline.errors import EpochlineError, LookupUnavailableError
from epochline.lookup.pool import Pool, PoolExhaustedError

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")


class Outcome(StrEnum):
    """How a look-up ended."""

    ANSWERED = "answered"
    TIMED_OUT = "timed out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[K, V]):
    """What became of one look-up.

    Args:
        position: of the key among the keys, from 0.
        key: that was looked up.
        outcome: how it ended.
        value: what was found; of one that timed out, what ``on_timeout`` gave for it.
        error: of one that failed. Its text may show the key, or where the store is.
    """

    position: int
    key: K
    outcome: Outcome
    value: V | None = None
    error: Exception | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Generic[K, V, C]):
    """What is asked, and how; see `epochline.lookup.Lookup`."""

    fetch: Callable[[C, K], V]
    concurrency: int
    timeout: timedelta
    max_wait: timedelta | None
    on_timeout: Callable[[K], V | None] | None
    cancel: Callable[[C], object] | None


class _Unreachable(Exception):  # noqa: N818 - never raised
    """No connection could be opened, which is no key's fault; the cause says why."""


class _Request(Generic[K, V, C]):
    """One look-up on its way. Whoever settles it first, its thread or the deadline, decides what became of it."""

    def __init__(self, position: int, key: K, deadline: float) -> None:
        self.position, self.key, self.deadline = position, key, deadline
        self.answer: Answer[K, V] | None = None
        self.connection: C | None = None
        """The connection that is busy with it, or was when it was settled."""
        self._lock = threading.Lock()

    def settle(self, outcome: Outcome, value: V | None = None, error: Exception | None = None) -> bool:
        """Write down the outcome; False where there is one already."""
        with self._lock:
            if self.answer is not None:
                return False
            self.answer = Answer(position=self.position, key=self.key, outcome=outcome, value=value, error=error)
            return True

    def uses(self, connection: C) -> bool:
        """Note which connection will be busy with it; False where nobody waits for it any more."""
        with self._lock:
            if self.answer is None:
                self.connection = connection
            return self.answer is None


class Round(Generic[K, V, C]):
    """Answers to some keys. A thread that is not back in time is left to itself, and another takes its place."""

    def __init__(self, terms: Terms[K, V, C], pool: Pool[C]) -> None:
        self._terms, self._pool = terms, pool
        self._todo: queue.SimpleQueue[_Request[K, V, C] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Request[K, V, C]] = queue.SimpleQueue()
        self._asked: deque[_Request[K, V, C]] = deque()
        """What was asked, in the order of the deadlines; settled ones leave as they become the oldest."""
        self._waited_for = 0
        self._threads = 0

    def answers(self, keys: Iterable[K], *, ordered: bool) -> Generator[Answer[K, V], None, None]:
        """Each key's answer, in the keys' order or as they come.

        Never are more keys taken than look-ups may be made at once; an answer that has to wait for an earlier one is
        counted among them.

        Raises:
            LookupUnavailableError: no connection could be opened.
        """
        numbered = enumerate(keys)
        held: dict[int, Answer[K, V]] = {}
        position = 0
        try:
            while True:
                while (
                    self._waited_for + len(held) < self._terms.concurrency
                    and (following := next(numbered, None)) is not None
                ):
                    self._ask(*following)
                if not self._waited_for:
                    return
                answer = self._told(self._next_settled())
                if not ordered:
                    yield answer
                    continue
                held[answer.position] = answer
                while position in held:
                    yield held.pop(position)
                    position += 1
        finally:
            self._end()

    def _ask(self, position: int, key: K) -> None:
        deadline = time.monotonic() + self._terms.timeout.total_seconds()
        request: _Request[K, V, C] = _Request(position, key, deadline)
        self._asked.append(request)
        self._waited_for += 1
        if self._threads < self._waited_for:
            # A daemon: a look-up that never ends must not keep the process from ending.
            threading.Thread(target=self._work, name="epochline-lookup", daemon=True).start()
            self._threads += 1
        self._todo.put(request)

    def _next_settled(self) -> _Request[K, V, C]:
        while True:
            while self._asked and self._asked[0].answer is not None:
                self._asked.popleft()
            if not self._asked:
                return self._done.get()
            oldest = self._asked[0]
            try:
                return self._done.get(timeout=max(0.0, oldest.deadline - time.monotonic()))
            except queue.Empty:
                if oldest.settle(Outcome.TIMED_OUT):
                    self._leave_alone(oldest)
                    return oldest

    def _told(self, request: _Request[K, V, C]) -> Answer[K, V]:
        self._waited_for -= 1
        answer = cast("Answer[K, V]", request.answer)
        if isinstance(answer.error, _Unreachable):
            _raise_unreachable(answer.error.__cause__)
        if answer.outcome is Outcome.TIMED_OUT and self._terms.on_timeout is not None:
            return replace(answer, value=self._terms.on_timeout(answer.key))
        return answer

    def _leave_alone(self, request: _Request[K, V, C]) -> None:
        self._threads -= 1
        cancel, connection = self._terms.cancel, request.connection
        if cancel is not None and connection is not None:
            # In a thread of its own, because a store that does not answer may not take a cancellation either.
            threading.Thread(target=_quietly, args=(cancel, connection), name="epochline-cancel", daemon=True).start()

    def _end(self) -> None:
        for request in self._asked:
            if request.settle(Outcome.TIMED_OUT):
                self._leave_alone(request)
        for _ in range(self._threads):
            self._todo.put(None)

    def _work(self) -> None:
        while (request := self._todo.get()) is not None:
            if not self._serve(request):
                return

    def _serve(self, request: _Request[K, V, C]) -> bool:
        """Settle a request; False where the deadline was faster, and this thread is not waited for any more."""
        max_wait = self._terms.max_wait
        patience = time.monotonic() + max_wait.total_seconds() if max_wait is not None else request.deadline
        try:
            connection, used = self._pool.take(min(patience, request.deadline))
        except PoolExhaustedError as error:
            return self._settled(request, Outcome.FAILED if patience < request.deadline else Outcome.TIMED_OUT, error)
        except Exception as error:
            return self._unreachable(request, error)
        while request.uses(connection):
            try:
                value = self._terms.fetch(connection, request.key)
            except Exception as error:
                if not used or request.answer is not None:
                    in_time = self._settled(request, Outcome.FAILED, error)
                    self._pool.drop(connection)
                    return in_time
            else:
                return self._answered(request, connection, value)
            # Whether the connection broke while nobody used it, or the store refuses the key, a new one will show.
            try:
                connection, used = self._pool.replace(connection), False
            except Exception as error:
                return self._unreachable(request, error)
        if not self._pool.give(connection):
            self._pool.drop(connection)
        return False

    def _answered(self, request: _Request[K, V, C], connection: C, value: V) -> bool:
        in_time = request.settle(Outcome.ANSWERED, value)
        kept = in_time and self._pool.give(connection)
        if in_time:
            self._done.put(request)
        if not kept:
            # Last, because closing may take its time.
            self._pool.drop(connection)
        return in_time

    def _unreachable(self, request: _Request[K, V, C], cause: Exception) -> bool:
        error = _Unreachable()
        error.__cause__ = cause
        return self._settled(request, Outcome.FAILED, error)

    def _settled(self, request: _Request[K, V, C], outcome: Outcome, error: Exception) -> bool:
        in_time = request.settle(outcome, error=None if outcome is Outcome.TIMED_OUT else error)
        if in_time:
            self._done.put(request)
        return in_time


def _raise_unreachable(cause: BaseException | None) -> NoReturn:
    if isinstance(cause, EpochlineError):
        raise cause
    # Neither text nor cause: a client may show its password in them, and logs show this (trap 17).
    raise LookupUnavailableError(
        f"no connection could be opened for a look-up ({type(cause).__name__}); the store is down, or what `connect`"
        " connects to is wrong. No record is to blame for it, so that the whole attempt fails"
    ) from None


def _quietly(function: Callable[[C], object], connection: C) -> None:
    with suppress(Exception):
        function(connection)
