"""One round of look-ups: threads fetch the values, and the caller waits for each answer until its deadline."""

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
    """The result of one look-up.

    Args:
        position: of the key among the keys, from 0.
        key: that was looked up.
        outcome: how the look-up ended.
        value: what was found; after a time-out, what ``on_timeout`` returned.
        error: why the look-up failed. Its text may contain the key or the store's address.
    """

    position: int
    key: K
    outcome: Outcome
    value: V | None = None
    error: Exception | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings(Generic[K, V, C]):
    """What a round needs of the arguments of `epochline.lookup.Lookup`."""

    fetch: Callable[[C, K], V]
    concurrency: int
    timeout: timedelta
    max_wait: timedelta | None
    on_timeout: Callable[[K], V | None] | None
    cancel: Callable[[C], object] | None


class _Unreachable(Exception):  # noqa: N818 - never raised
    """No connection could be opened, whatever the key. The cause holds the reason."""


class _Request(Generic[K, V, C]):
    """One look-up in progress. Either its thread or its deadline settles it, whichever comes first."""

    def __init__(self, position: int, key: K, deadline: float) -> None:
        self.position, self.key, self.deadline = position, key, deadline
        self.answer: Answer[K, V] | None = None
        self.connection: C | None = None
        """The connection that runs the look-up, or ran it when the request was settled."""
        self._lock = threading.Lock()

    def settle(self, outcome: Outcome, value: V | None = None, error: Exception | None = None) -> bool:
        """Set the answer. Returns False if the request is settled already."""
        with self._lock:
            if self.answer is not None:
                return False
            self.answer = Answer(position=self.position, key=self.key, outcome=outcome, value=value, error=error)
            return True

    def start_on(self, connection: C) -> bool:
        """Note the connection that will run the look-up. Returns False if the request is settled already."""
        with self._lock:
            if self.answer is None:
                self.connection = connection
            return self.answer is None


class Round(Generic[K, V, C]):
    """Looks up some keys. A thread that misses its deadline is abandoned, and another one takes its place."""

    def __init__(self, settings: RoundSettings[K, V, C], pool: Pool[C]) -> None:
        self._settings, self._pool = settings, pool
        self._todo: queue.SimpleQueue[_Request[K, V, C] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Request[K, V, C]] = queue.SimpleQueue()
        self._by_deadline: deque[_Request[K, V, C]] = deque()
        """Requests in the order of their deadlines. A settled request is removed once it is the oldest."""
        self._in_flight = 0
        self._threads = 0

    def answers(self, keys: Iterable[K], *, ordered: bool) -> Generator[Answer[K, V], None, None]:
        """Yields each key's answer, in the order of the keys or as the answers come.

        At most ``concurrency`` keys are taken ahead. An answer that waits for an earlier key counts among them.

        Raises:
            LookupUnavailableError: no connection could be opened.
        """
        numbered = enumerate(keys)
        buffered: dict[int, Answer[K, V]] = {}
        position = 0
        try:
            while True:
                while (
                    self._in_flight + len(buffered) < self._settings.concurrency
                    and (following := next(numbered, None)) is not None
                ):
                    self._submit(*following)
                if not self._in_flight:
                    return
                answer = self._finish(self._next_settled())
                if not ordered:
                    yield answer
                    continue
                buffered[answer.position] = answer
                while position in buffered:
                    yield buffered.pop(position)
                    position += 1
        finally:
            self._shut_down()

    def _submit(self, position: int, key: K) -> None:
        deadline = time.monotonic() + self._settings.timeout.total_seconds()
        request: _Request[K, V, C] = _Request(position, key, deadline)
        self._by_deadline.append(request)
        self._in_flight += 1
        if self._threads < self._in_flight:
            # A daemon: a look-up that never ends must not keep the process from ending.
            threading.Thread(target=self._work, name="epochline-lookup", daemon=True).start()
            self._threads += 1
        self._todo.put(request)

    def _next_settled(self) -> _Request[K, V, C]:
        while True:
            while self._by_deadline and self._by_deadline[0].answer is not None:
                self._by_deadline.popleft()
            if not self._by_deadline:
                return self._done.get()
            oldest = self._by_deadline[0]
            try:
                return self._done.get(timeout=max(0.0, oldest.deadline - time.monotonic()))
            except queue.Empty:
                if oldest.settle(Outcome.TIMED_OUT):
                    self._abandon(oldest)
                    return oldest

    def _finish(self, request: _Request[K, V, C]) -> Answer[K, V]:
        self._in_flight -= 1
        answer = cast("Answer[K, V]", request.answer)
        if isinstance(answer.error, _Unreachable):
            raise_unreachable(answer.error.__cause__)
        if answer.outcome is Outcome.TIMED_OUT and self._settings.on_timeout is not None:
            return replace(answer, value=self._settings.on_timeout(answer.key))
        return answer

    def _abandon(self, request: _Request[K, V, C]) -> None:
        self._threads -= 1
        cancel, connection = self._settings.cancel, request.connection
        if cancel is not None and connection is not None:
            # In its own thread, because a store that does not answer may not accept a cancellation either.
            threading.Thread(target=_quietly, args=(cancel, connection), name="epochline-cancel", daemon=True).start()

    def _shut_down(self) -> None:
        for request in self._by_deadline:
            if request.settle(Outcome.TIMED_OUT):
                self._abandon(request)
        for _ in range(self._threads):
            self._todo.put(None)

    def _work(self) -> None:
        while (request := self._todo.get()) is not None:
            if not self._serve(request):
                return

    def _serve(self, request: _Request[K, V, C]) -> bool:
        """Settle a request. Returns False if the deadline settled it first: this thread is abandoned then."""
        max_wait = self._settings.max_wait
        wait_until = time.monotonic() + max_wait.total_seconds() if max_wait is not None else request.deadline
        try:
            connection, used = self._pool.take(min(wait_until, request.deadline))
        except PoolExhaustedError as error:
            return self._settle(request, Outcome.FAILED if wait_until < request.deadline else Outcome.TIMED_OUT, error)
        except Exception as error:
            return self._settle_unreachable(request, error)
        while request.start_on(connection):
            try:
                value = self._settings.fetch(connection, request.key)
            except Exception as error:
                if not used or request.answer is not None:
                    in_time = self._settle(request, Outcome.FAILED, error)
                    self._pool.drop(connection)
                    return in_time
            else:
                return self._settle_answered(request, connection, value)
            # An idle connection may have broken, or the store refuses the key. A new connection shows which.
            try:
                connection, used = self._pool.replace(connection), False
            except Exception as error:
                return self._settle_unreachable(request, error)
        if not self._pool.give(connection):
            self._pool.drop(connection)
        return False

    def _settle_answered(self, request: _Request[K, V, C], connection: C, value: V) -> bool:
        in_time = request.settle(Outcome.ANSWERED, value)
        kept = in_time and self._pool.give(connection)
        if in_time:
            self._done.put(request)
        if not kept:
            # Last, because closing may take long.
            self._pool.drop(connection)
        return in_time

    def _settle_unreachable(self, request: _Request[K, V, C], cause: Exception) -> bool:
        error = _Unreachable()
        error.__cause__ = cause
        return self._settle(request, Outcome.FAILED, error)

    def _settle(self, request: _Request[K, V, C], outcome: Outcome, error: Exception) -> bool:
        in_time = request.settle(outcome, error=None if outcome is Outcome.TIMED_OUT else error)
        if in_time:
            self._done.put(request)
        return in_time


def raise_unreachable(cause: BaseException | None) -> NoReturn:
    """Say that a store cannot be reached.

    Raises:
        EpochlineError: the cause, if it is one.
        LookupUnavailableError: for every other cause.
    """
    if isinstance(cause, EpochlineError):
        raise cause
    # Neither text nor cause: a client may show its password in them, and logs show both (SEC-4).
    raise LookupUnavailableError(
        f"no connection could be opened for a look-up ({type(cause).__name__}). The store is down, or `connect` uses"
        " a wrong address. No record causes this error, so the whole attempt fails."
    ) from None


def _quietly(function: Callable[[C], object], connection: C) -> None:
    with suppress(Exception):
        function(connection)
