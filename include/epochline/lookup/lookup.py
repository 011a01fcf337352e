"""Look keys up in a store, many at a time: through an asynchronous client, or in threads."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.lookup.answers import Ended, KeyedLookup, LookUp, Outcome, UnreachableError, raise_unreachable
from epochline.lookup.pool import Pool, PoolExhaustedError, PoolLimits

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")

_TIMED_OUT: Ended = (Outcome.TIMED_OUT, None, None)


class AsyncLookup(KeyedLookup[K, V], Generic[K, V, C]):
    """Looks keys up through one asynchronous client, without a thread; see `KeyedLookup` for the other arguments.

    A look-up that timed out is cancelled. The client decides what happens to its connection.

    Args:
        fetch: takes the client and a key and returns the value, or None for an unknown key. It must only read.
        connect: makes the client. The client limits its own connections, and may open them later.
        close: closes the client.
        unavailable: exceptions of ``fetch`` that mean that the store cannot be reached.
    """

    def __init__(
        self,
        fetch: Callable[[C, K], Awaitable[V]],
        *,
        connect: Callable[[], C],
        close: Callable[[C], Awaitable[object]],
        concurrency: int,
        timeout: timedelta,
        unavailable: tuple[type[Exception], ...] = (OSError,),
        ordered: bool = True,
        on_timeout: Callable[[K], V | None] | None = None,
    ) -> None:
        arguments = {
            "fetch": fetch, "connect": connect, "close": close, "concurrency": concurrency, "timeout": timeout,
            "unavailable": unavailable, "ordered": ordered, "on_timeout": on_timeout,
        }  # fmt: skip
        super().__init__(unavailable=unavailable, arguments=arguments)
        self._fetch, self._connect, self._close = fetch, connect, close
        self._opened: tuple[asyncio.AbstractEventLoop, C] | None = None

    @contextmanager
    def _round(self) -> Iterator[tuple[asyncio.AbstractEventLoop, LookUp[K]]]:
        if self._opened is None:
            try:
                client = self._connect()
            except Exception as error:
                raise_unreachable(error)
            loop = asyncio.new_event_loop()
            # Spark ships the functions again with each task; clients of earlier copies must not accumulate.
            weakref.finalize(self, _close_client, loop, self._close, client)
            self._opened = loop, client
        opened_loop, opened_client = self._opened
        yield opened_loop, partial(_fetched, self._fetch, opened_client, self.timeout.total_seconds())


async def _fetched(fetch: Callable[[C, K], Awaitable[Any]], client: C, seconds: float, key: K) -> Ended:
    """Look a key up. No method: the traceback of an error keeps what its frames refer to, such as ``self``."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return Outcome.ANSWERED, await fetch(client, key), None
    except Exception as error:
        return _TIMED_OUT if limit.expired() else (Outcome.FAILED, None, error)
    finally:
        # Else the traceback would refer to its own task.
        del limit


def _close_client(loop: asyncio.AbstractEventLoop, close: Callable[[C], Awaitable[object]], client: C) -> None:
    """Close a client in its own loop. A client that cannot be closed must not disturb the collection of garbage."""

    async def closed() -> None:
        await close(client)

    with suppress(Exception):
        loop.run_until_complete(closed())
    loop.close()


class Lookup(KeyedLookup[K, V], Generic[K, V, C]):
    """Looks keys up in threads, each look-up on its own connection; see `KeyedLookup` for the other arguments.

    A look-up that raises on a connection that was used before is tried once more on a new connection, because the old
    one may have broken while it was idle. The connection of a look-up that failed or timed out is closed.

    A look-up that timed out continues in its thread until the client gives up, and its connection counts against the
    pool's limit until then. If such look-ups hold all connections, the others time out as well. Set a time-out in the
    client too, or pass ``cancel``.

    Args:
        fetch: takes a connection and a key and returns the value, or None for an unknown key. It blocks, it is called
            in threads, and it must only read, because it may be called twice for a key.
        connect: opens a connection.
        close: closes a connection.
        pool: the limits of the connection pool. With fewer connections than ``concurrency``, look-ups wait for one.
        cancel: interrupts what a connection does, such as psycopg2's ``connection.cancel``. It is called from another
            thread after a time-out.
    """

    def __init__(
        self,
        fetch: Callable[[C, K], V],
        *,
        connect: Callable[[], C],
        close: Callable[[C], object],
        concurrency: int,
        timeout: timedelta,
        pool: PoolLimits | None = None,
        ordered: bool = True,
        on_timeout: Callable[[K], V | None] | None = None,
        cancel: Callable[[C], object] | None = None,
    ) -> None:
        limits = pool or PoolLimits()
        arguments = {
            "fetch": fetch, "connect": connect, "close": close, "concurrency": concurrency, "timeout": timeout,
            "pool": limits, "ordered": ordered, "on_timeout": on_timeout, "cancel": cancel,
        }  # fmt: skip
        super().__init__(unavailable=(UnreachableError,), arguments=arguments)
        self._fetch, self._cancel = fetch, cancel
        self._max_wait = timeout if limits.max_wait is None else limits.max_wait
        self._pool = Pool(connect, close, limits)
        # Spark ships the functions again with each task; connections of earlier copies must not accumulate.
        weakref.finalize(self, self._pool.close)

    @contextmanager
    def _round(self) -> Iterator[tuple[asyncio.AbstractEventLoop, LookUp[K]]]:
        loop, threads = asyncio.new_event_loop(), _Threads()
        try:
            yield loop, partial(self._look_up, threads)
        finally:
            threads.end()
            loop.close()

    async def _look_up(self, threads: _Threads, key: K) -> Ended:
        request = _Request(self._fetch, key, self._pool, self._max_wait, self.timeout)
        threads.run(request.serve)
        try:
            await asyncio.wait({asyncio.wrap_future(request.ended)}, timeout=self.timeout.total_seconds())
        finally:
            # What the thread has answered counts, even if the caller took so long that the deadline has passed.
            timed_out = request.ended.cancel()
            threads.give_back(is_free=not timed_out)
            if timed_out and self._cancel is not None and request.connection is not None:
                # In its own thread, because a store that does not answer may not accept a cancellation either.
                threading.Thread(target=_quietly, args=(self._cancel, request.connection), daemon=True).start()
        return _TIMED_OUT if timed_out else request.ended.result()


class _Threads:
    """Daemon threads of some look-ups: one that never ends must not keep the process from ending."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._alive = self._free = 0

    def run(self, serve: Callable[[], bool]) -> None:
        """Call a function in a thread, which ends if the function returns False."""
        if self._free:
            self._free -= 1
        else:
            threading.Thread(target=self._work, name="epochline-lookup", daemon=True).start()
            self._alive += 1
        self._todo.put(serve)

    def give_back(self, *, is_free: bool) -> None:
        """Note that a thread may be used again, or that it will end when its look-up does."""
        if is_free:
            self._free += 1
        else:
            self._alive -= 1

    def end(self) -> None:
        for _ in range(self._alive):
            self._todo.put(None)

    def _work(self) -> None:
        while (serve := self._todo.get()) is not None:
            if not serve():
                return


@dataclass(slots=True, eq=False)
class _Request(Generic[K, C]):
    """One look-up in a thread. Either the thread or the deadline settles it, whichever comes first."""

    fetch: Callable[[C, K], Any]
    key: K
    pool: Pool[C]
    max_wait: timedelta
    timeout: timedelta
    ended: Future[Ended] = field(default_factory=Future)
    """The thread sets it; the deadline cancels it."""
    connection: C | None = None
    """The connection that runs the look-up, or ran it when the request was settled."""

    def serve(self) -> bool:
        """Look the key up in this thread. Returns False if the deadline settled the request first."""
        ended = self._looked_up()
        in_time = self.ended.set_running_or_notify_cancel()
        connection = self.connection
        # Given back before the answer is, so that the next look-up finds it.
        kept = connection is not None and in_time and ended[0] is Outcome.ANSWERED and self.pool.give(connection)
        if in_time:
            self.ended.set_result(ended)
        if connection is not None and not kept:
            # Last, because closing may take long.
            self.pool.drop(connection)
        return in_time

    def _looked_up(self) -> Ended:
        try:
            connection, used = self.pool.take(time.monotonic() + min(self.max_wait, self.timeout).total_seconds())
        except PoolExhaustedError as error:
            return (Outcome.FAILED, None, error) if self.max_wait < self.timeout else _TIMED_OUT
        except Exception as error:
            return Outcome.FAILED, None, UnreachableError(error)
        self.connection = connection
        while not self.ended.cancelled():
            try:
                return Outcome.ANSWERED, self.fetch(connection, self.key), None
            except Exception as error:
                if not used or self.ended.cancelled():
                    return Outcome.FAILED, None, error
            # An idle connection may have broken, or the store refuses the key. A new connection shows which.
            self.connection, used = None, False
            try:
                self.connection = connection = self.pool.replace(connection)
            except Exception as error:
                return Outcome.FAILED, None, UnreachableError(error)
        return _TIMED_OUT


def _quietly(function: Callable[[C], object], connection: C) -> None:
    with suppress(Exception):
        function(connection)
