"""Look keys up in a store, many at a time: through an asynchronous client, or in threads."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.lookup.answers import Ended, KeyedLookup, LookUp, Outcome, UnreachableError, raise_unreachable
from epochline.lookup.pool import Pool, PoolExhaustedError, PoolLimits

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")


class AsyncLookup(KeyedLookup[K, V], Generic[K, V, C]):
    """Looks keys up through one asynchronous client, and answers every key within the time-out.

    Create one at the top level of the module with the pipeline's functions, as a `Lookup`. It opens its client at the
    first look-up, keeps it between batches, and closes it when it is garbage collected. It starts no thread.

    A look-up that timed out is cancelled. The client decides what happens to its connection.

    Args:
        fetch: takes the client and a key and returns the value, or None for an unknown key. It must only read.
        connect: makes the client. The client limits its own connections, and may open them later.
        close: closes the client.
        concurrency: how many look-ups run at once.
        timeout: of each look-up, including the wait for a connection.
        unavailable: exceptions of ``fetch`` that mean that the store cannot be reached.
        ordered: whether `each` yields answers in the order of the keys, or as they come.
        on_timeout: called once for each key that timed out. What it returns becomes the value of the answer.

    Raises:
        DeclarationError: ``concurrency`` is below 1, or ``timeout`` is not positive.
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
        return (Outcome.TIMED_OUT, None, None) if limit.expired() else (Outcome.FAILED, None, error)
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
    """Looks keys up in threads, each look-up on its own connection, and answers every key within the time-out.

    Create one at the top level of the module with the pipeline's functions. It is shipped to the executors with them
    and opens its first connection at the first look-up. It keeps connections between batches and closes them when it
    is garbage collected.

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
        concurrency: how many look-ups run at once.
        timeout: of each look-up, including the wait for a connection.
        pool: the limits of the connection pool. With fewer connections than ``concurrency``, look-ups wait for one.
        ordered: whether `each` yields answers in the order of the keys, or as they come.
        on_timeout: called once for each key that timed out, in the thread that iterates over the answers. What it
            returns becomes the value of the answer.
        cancel: interrupts what a connection does, such as psycopg2's ``connection.cancel``. It is called from another
            thread after a time-out.

    Raises:
        DeclarationError: ``concurrency`` is below 1, or ``timeout`` is not positive.
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
        self._fetch, self._cancel, self._max_wait = fetch, cancel, limits.max_wait
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
        seconds = self.timeout.total_seconds()
        deadline = time.monotonic() + seconds
        wait_until = deadline if self._max_wait is None else time.monotonic() + self._max_wait.total_seconds()
        request: _Request[K, V, C] = _Request(self._fetch, self._pool, key)
        threads.run(partial(request.serve, wait_until, deadline))
        try:
            await asyncio.wait({request.served}, timeout=seconds)
        finally:
            # What the thread has answered counts, even if the caller took so long that the deadline has passed.
            timed_out = request.settle((Outcome.TIMED_OUT, None, None))
            threads.give_back(is_free=not timed_out)
            if timed_out and self._cancel is not None and request.connection is not None:
                # In its own thread, because a store that does not answer may not accept a cancellation either.
                threading.Thread(target=_quietly, args=(self._cancel, request.connection), daemon=True).start()
        return request.ended or (Outcome.TIMED_OUT, None, None)


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


class _Request(Generic[K, V, C]):
    """One look-up in a thread. Either the thread or the deadline settles it, whichever comes first."""

    def __init__(self, fetch: Callable[[C, K], V], pool: Pool[C], key: K) -> None:
        self._fetch, self._pool, self._key = fetch, pool, key
        self._loop = asyncio.get_running_loop()
        self.served: asyncio.Future[None] = self._loop.create_future()
        self.ended: Ended | None = None
        self.connection: C | None = None
        """The connection that runs the look-up, or ran it when the request was settled."""
        self._lock = threading.Lock()

    def settle(self, ended: Ended) -> bool:
        """Set how the look-up ended. Returns False if it is settled already."""
        with self._lock:
            if self.ended is None:
                self.ended = ended
                return True
            return False

    def serve(self, wait_until: float, deadline: float) -> bool:
        """Look the key up. Without a connection by ``deadline``, the look-up times out; by ``wait_until``, it fails.

        Returns False if the deadline settled it first.
        """
        try:
            connection, used = self._pool.take(min(wait_until, deadline))
        except PoolExhaustedError as error:
            return self._fail(error) if wait_until < deadline else self._end((Outcome.TIMED_OUT, None, None))
        except Exception as error:
            return self._fail(_unreachable(error))
        while self._start_on(connection):
            try:
                value = self._fetch(connection, self._key)
            except Exception as error:
                if not used or self.ended is not None:
                    in_time = self._fail(error)
                    self._pool.drop(connection)
                    return in_time
            else:
                in_time = self.settle((Outcome.ANSWERED, value, None))
                kept = in_time and self._pool.give(connection)
                self._wake()
                if not kept:
                    # Last, because closing may take long.
                    self._pool.drop(connection)
                return in_time
            # An idle connection may have broken, or the store refuses the key. A new connection shows which.
            try:
                connection, used = self._pool.replace(connection), False
            except Exception as error:
                return self._fail(_unreachable(error))
        if not self._pool.give(connection):
            self._pool.drop(connection)
        return False

    def _start_on(self, connection: C) -> bool:
        """Note the connection that will run the look-up. Returns False if the request is settled already."""
        with self._lock:
            if self.ended is None:
                self.connection = connection
            return self.ended is None

    def _fail(self, error: Exception) -> bool:
        return self._end((Outcome.FAILED, None, error))

    def _end(self, ended: Ended) -> bool:
        in_time = self.settle(ended)
        self._wake()
        return in_time

    def _wake(self) -> None:
        # The loop is closed if the deadline has passed and nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_set, self.served)


def _set(served: asyncio.Future[None]) -> None:
    if not served.done():
        served.set_result(None)


def _unreachable(cause: Exception) -> UnreachableError:
    error = UnreachableError()
    error.__cause__ = cause
    return error


def _quietly(function: Callable[[C], object], connection: C) -> None:
    with suppress(Exception):
        function(connection)
