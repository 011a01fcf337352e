"""Look keys up through an asynchronous client, many at a time in one thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from epochline.errors import DeclarationError
from epochline.lookup.round import Answer, Outcome, raise_unreachable

K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")


class AsyncLookup(Generic[K, V, C]):
    """Looks keys up through one asynchronous client, and answers every key within the time-out.

    Create one at the top level of the module with the pipeline's functions, as a `Lookup`. It opens its client at the
    first look-up, keeps it between batches, and closes it when it is garbage collected. It has an event loop of its
    own, which runs in the thread that iterates over the answers; it starts no thread.

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
        if concurrency < 1:
            raise DeclarationError("AsyncLookup.concurrency: must be 1 or more")
        if timeout <= timedelta(0):
            raise DeclarationError("AsyncLookup.timeout: must be positive")
        self._arguments: dict[str, Any] = {
            "connect": connect, "close": close, "concurrency": concurrency, "timeout": timeout,
            "unavailable": unavailable, "ordered": ordered, "on_timeout": on_timeout,
        }  # fmt: skip
        self._fetch, self._connect, self._concurrency, self._timeout = fetch, connect, concurrency, timeout
        self._unavailable, self._ordered, self._on_timeout = unavailable, ordered, on_timeout
        self._close = close
        self._client: tuple[C, asyncio.AbstractEventLoop] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(AsyncLookup, self._fetch, **self._arguments), ()

    @property
    def timeout(self) -> timedelta:
        """How long a look-up may take."""
        return self._timeout

    def each(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """Yields one answer per key: in the order of the keys if ``ordered``, else as they come.

        At most ``concurrency`` keys are taken ahead. If ``ordered``, a slow look-up delays the answers behind it until
        its deadline.

        Raises:
            LookupUnavailableError: ``connect`` raised, or ``fetch`` raised one of ``unavailable``. Retry when the
                store is back. An `EpochlineError` that ``connect`` raises passes unchanged.
        """
        yield from self._answers(keys, ordered=self._ordered)

    def as_they_come(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """As `each`, but always unordered. Use `Answer.position` to match answers to keys."""
        yield from self._answers(keys, ordered=False)

    def _answers(self, keys: Iterable[K], *, ordered: bool) -> Iterator[Answer[K, V]]:
        client, loop = self._opened()
        numbered = enumerate(keys)
        running: set[asyncio.Task[Answer[K, V]]] = set()
        buffered: dict[int, Answer[K, V]] = {}
        position = 0
        try:
            while True:
                while (
                    len(running) + len(buffered) < self._concurrency and (following := next(numbered, None)) is not None
                ):
                    running.add(loop.create_task(self._answer(client, *following)))
                if not running:
                    return
                done, running = loop.run_until_complete(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                for answer in sorted((one.result() for one in done), key=lambda one: one.position):
                    if not ordered:
                        yield self._completed(answer)
                        continue
                    buffered[answer.position] = answer
                while position in buffered:
                    yield self._completed(buffered.pop(position))
                    position += 1
        finally:
            for task in running:
                task.cancel()
            if running:
                loop.run_until_complete(asyncio.wait(running))

    async def _answer(self, client: C, position: int, key: K) -> Answer[K, V]:
        made: Callable[..., Answer[K, V]] = partial(Answer, position=position, key=key)
        try:
            async with asyncio.timeout(self._timeout.total_seconds()) as limit:
                return made(outcome=Outcome.ANSWERED, value=await self._fetch(client, key))
        except Exception as error:
            return made(outcome=Outcome.TIMED_OUT) if limit.expired() else made(outcome=Outcome.FAILED, error=error)

    def _completed(self, answer: Answer[K, V]) -> Answer[K, V]:
        if isinstance(answer.error, self._unavailable):
            raise_unreachable(answer.error)
        if answer.outcome is Outcome.TIMED_OUT and self._on_timeout is not None:
            return replace(answer, value=self._on_timeout(answer.key))
        return answer

    def _opened(self) -> tuple[C, asyncio.AbstractEventLoop]:
        if self._client is None:
            try:
                client = self._connect()
            except Exception as error:
                raise_unreachable(error)
            loop = asyncio.new_event_loop()
            # Spark ships the functions again with each task; clients of earlier copies must not accumulate.
            weakref.finalize(self, _end, loop, self._close, client)
            self._client = client, loop
        return self._client


def _end(loop: asyncio.AbstractEventLoop, close: Callable[[C], Awaitable[object]], client: C) -> None:
    """Close a client in its own loop. A client that cannot be closed must not disturb the collection of garbage."""

    async def closed() -> None:
        await close(client)

    with suppress(Exception):
        loop.run_until_complete(closed())
    loop.close()
