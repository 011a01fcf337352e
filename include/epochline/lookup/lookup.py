"""A store in which keys are looked up, many at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.errors import DeclarationError
from epochline.lookup.asking import Answer, Round, Terms
from epochline.lookup.pool import Pool, PoolLimits

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")


class Lookup(Generic[K, V, C]):
    """Looks keys up in threads, each look-up on a connection of its own, and gives every key an answer in time.

    A module of a pipeline's functions holds one at its top level; it opens nothing before its first look-up, and goes
    to the executors with the functions. Its connections are kept between batches, and closed when it is let go of.

    A look-up that raises is made once more if its connection was used before, on a new one: it may have broken
    meanwhile. The connection of a look-up that failed or timed out is closed and never used again.

    A look-up that timed out goes on in its thread until the client gives up; until then its connection counts among
    the pool's. Where so many hang that none is left, the others time out waiting for one, but nothing waits longer. So
    give the client a time-out of its own too, or ``cancel``.

    Args:
        fetch: from a connection and a key to the value, waiting for it; called in threads. It must only read, because
            it may be called twice. None means that there is no such key.
        connect: opens a connection.
        close: closes one.
        concurrency: how many look-ups are waited for at once.
        timeout: of each look-up, from the moment it is begun, and the wait for a connection included.
        pool: how many connections there may be. With fewer than ``concurrency`` some look-ups wait for one.
        ordered: `each` gives answers in the keys' order; otherwise as they come.
        on_timeout: called once for each key whose look-up timed out, by who waits for the answers; what it gives other
            than None stands for the value.
        cancel: ends what a connection is busy with, called from another thread after a time-out: psycopg2's
            ``connection.cancel``, or closing the socket.

    Raises:
        DeclarationError: ``concurrency`` or ``timeout`` leaves nothing to do.
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
            raise DeclarationError("Lookup.concurrency: there must be one look-up at once at least")
        if timeout <= timedelta(0):
            raise DeclarationError("Lookup.timeout: must be longer than nothing")
        limits = pool or PoolLimits()
        self._arguments: dict[str, Any] = {
            "connect": connect, "close": close, "concurrency": concurrency, "timeout": timeout, "pool": limits,
            "ordered": ordered, "on_timeout": on_timeout, "cancel": cancel,
        }  # fmt: skip
        self._ordered = ordered
        self._terms = Terms(
            fetch=fetch,
            concurrency=concurrency,
            timeout=timeout,
            max_wait=limits.max_wait,
            on_timeout=on_timeout,
            cancel=cancel,
        )
        self._pool = Pool(connect, close, limits)
        # Functions are shipped anew with each task; the connections of those before must not add up.
        weakref.finalize(self, self._pool.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Lookup, self._terms.fetch, **self._arguments), ()

    @property
    def timeout(self) -> timedelta:
        """How long a look-up is waited for."""
        return self._terms.timeout

    def each(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """One answer for each key, in the keys' order or as they come, as declared.

        No more keys are taken than look-ups may be made at once; where order is kept, one that takes its time holds
        those behind it up, until its deadline.

        Raises:
            LookupUnavailableError: no connection could be opened; a repeat helps when the store is back. An
                `EpochlineError` that ``connect`` raises is raised as it is.
        """
        yield from self._answers(keys, ordered=self._ordered)

    def as_they_come(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """As `each` without order, whatever is declared: for who puts answers in their places by `Answer.position`."""
        yield from self._answers(keys, ordered=False)

    def _answers(self, keys: Iterable[K], *, ordered: bool) -> Iterator[Answer[K, V]]:
        with closing(Round(self._terms, self._pool).answers(keys, ordered=ordered)) as answers:
            yield from answers
