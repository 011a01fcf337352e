"""Look keys up in a store, many at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.errors import DeclarationError
from epochline.lookup.pool import Pool, PoolLimits
from epochline.lookup.round import Answer, Round, RoundSettings

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")


class Lookup(Generic[K, V, C]):
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
        if concurrency < 1:
            raise DeclarationError("Lookup.concurrency: must be 1 or more")
        if timeout <= timedelta(0):
            raise DeclarationError("Lookup.timeout: must be positive")
        limits = pool or PoolLimits()
        self._arguments: dict[str, Any] = {
            "connect": connect, "close": close, "concurrency": concurrency, "timeout": timeout, "pool": limits,
            "ordered": ordered, "on_timeout": on_timeout, "cancel": cancel,
        }  # fmt: skip
        self._ordered = ordered
        self._settings = RoundSettings(
            fetch=fetch,
            concurrency=concurrency,
            timeout=timeout,
            max_wait=limits.max_wait,
            on_timeout=on_timeout,
            cancel=cancel,
        )
        self._pool = Pool(connect, close, limits)
        # Spark ships the functions again with each task; connections of earlier copies must not accumulate.
        weakref.finalize(self, self._pool.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Lookup, self._settings.fetch, **self._arguments), ()

    @property
    def timeout(self) -> timedelta:
        """How long a look-up may take."""
        return self._settings.timeout

    def each(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """Yields one answer per key: in the order of the keys if ``ordered``, else as they come.

        At most ``concurrency`` keys are taken ahead. If ``ordered``, a slow look-up delays the answers behind it until
        its deadline.

        Raises:
            LookupUnavailableError: no connection could be opened. Retry when the store is back. An `EpochlineError`
                that ``connect`` raises passes unchanged.
        """
        yield from self._answers(keys, ordered=self._ordered)

    def as_they_come(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """As `each`, but always unordered. Use `Answer.position` to match answers to keys."""
        yield from self._answers(keys, ordered=False)

    def _answers(self, keys: Iterable[K], *, ordered: bool) -> Iterator[Answer[K, V]]:
        with closing(Round(self._settings, self._pool).answers(keys, ordered=ordered)) as answers:
            yield from answers
