"""Look keys up in a store, many at a time: through an asynchronous client, or in threads."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.lookup.answers import KeyedLookup, LookUp, UnreachableError, raise_unreachable
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

    def _begin(self) -> tuple[asyncio.AbstractEventLoop, LookUp[K, V]]:
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
        return opened_loop, partial(self._fetch, opened_client)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop stays with the client."""


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

    def _begin(self) -> tuple[asyncio.AbstractEventLoop, LookUp[K, V]]:
        return asyncio.new_event_loop(), self._look_up

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.close()

    async def _look_up(self, key: K) -> Any:
        deadline = time.monotonic() + self.timeout.total_seconds()
        wait_until = deadline if self._max_wait is None else time.monotonic() + self._max_wait.total_seconds()
        thread: _InThread[K, V, C] = _InThread(self._fetch, self._pool, key)
        # A daemon: a look-up that never ends must not keep the process from ending.
        threading.Thread(target=thread.run, args=(wait_until, deadline), name="epochline-lookup", daemon=True).start()
        try:
            value, error = await thread.answered
        except asyncio.CancelledError:
            connection = thread.abandon()
            if self._cancel is not None and connection is not None:
                # In its own thread, because a store that does not answer may not accept a cancellation either.
                threading.Thread(target=_quietly, args=(self._cancel, connection), daemon=True).start()
            raise
        if error is not None:
            raise error
        return value


class _InThread(Generic[K, V, C]):
    """One look-up in a thread. Either the thread or the deadline ends it, whichever comes first."""

    def __init__(self, fetch: Callable[[C, K], V], pool: Pool[C], key: K) -> None:
        self._fetch, self._pool, self._key = fetch, pool, key
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[tuple[Any, Exception | None]] = self._loop.create_future()
        """The value, or why there is none."""
        self._lock = threading.Lock()
        self._abandoned = False
        self._connection: C | None = None

    def abandon(self) -> C | None:
        """Let the thread's answer count no more. Returns the connection that the thread uses, if it uses one."""
        with self._lock:
            self._abandoned = True
            return self._connection

    def run(self, wait_until: float, deadline: float) -> None:
        """Look the key up. Without a connection by ``deadline``, the look-up times out; by ``wait_until``, it fails."""
        try:
            connection, used = self._pool.take(min(wait_until, deadline))
        except PoolExhaustedError as error:
            if wait_until < deadline:
                self._answer(error=error)
            return
        except Exception as error:
            self._unreachable(error)
            return
        while self._begin(connection):
            try:
                value = self._fetch(connection, self._key)
            except Exception as error:
                if not used or self._abandoned:
                    self._answer(error=error)
                    self._pool.drop(connection)
                    return
            else:
                kept = self._end() and self._pool.give(connection)
                self._answer(value)
                if not kept:
                    # Last, because closing may take long.
                    self._pool.drop(connection)
                return
            # An idle connection may have broken, or the store refuses the key. A new connection shows which.
            try:
                connection, used = self._pool.replace(connection), False
            except Exception as error:
                self._unreachable(error)
                return
        if not self._pool.give(connection):
            self._pool.drop(connection)

    def _begin(self, connection: C) -> bool:
        """Note the connection that looks the key up. Returns False if the deadline has passed."""
        with self._lock:
            if not self._abandoned:
                self._connection = connection
            return not self._abandoned

    def _end(self) -> bool:
        """From now on nothing may cancel the connection. Returns False if the deadline has passed."""
        with self._lock:
            self._connection = None
            return not self._abandoned

    def _unreachable(self, cause: Exception) -> None:
        error = UnreachableError()
        error.__cause__ = cause
        self._answer(error=error)

    def _answer(self, value: V | None = None, error: Exception | None = None) -> None:
        self._end()

        def settle() -> None:
            if not self.answered.done():
                self.answered.set_result((value, error))

        # The loop is closed if the deadline has passed and nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)


def _quietly(function: Callable[[C], object], connection: C) -> None:
    with suppress(Exception):
        function(connection)
