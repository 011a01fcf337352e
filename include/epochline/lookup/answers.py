"""Answers to keys, each by its deadline: what both kinds of look-up share."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from epochline.errors import DeclarationError, EpochlineError, LookupUnavailableError

K = TypeVar("K")
V = TypeVar("V")


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


Ended = tuple[Outcome, Any, Exception | None]
"""How a look-up ended, the value, and why it failed."""

LookUp = Callable[[K], Awaitable[Ended]]


class KeyedLookup(ABC, Generic[K, V]):
    """Looks keys up, ``concurrency`` at a time. Its event loop runs in the thread that iterates over the answers.

    Args:
        unavailable: errors of a look-up that mean that the store cannot be reached.
        arguments: all arguments of the constructor, with which a copy is made on an executor.
    """

    def __init__(self, *, unavailable: tuple[type[Exception], ...], arguments: dict[str, Any]) -> None:
        kind = type(self).__name__
        if arguments["concurrency"] < 1:
            raise DeclarationError(f"{kind}.concurrency: must be 1 or more")
        if arguments["timeout"] <= timedelta(0):
            raise DeclarationError(f"{kind}.timeout: must be positive")
        self._arguments, self._unavailable = arguments, unavailable

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments), ()

    @property
    def timeout(self) -> timedelta:
        """How long a look-up may take."""
        timeout: timedelta = self._arguments["timeout"]
        return timeout

    def each(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """Yields one answer per key: in the order of the keys if ``ordered``, else as they come.

        At most ``concurrency`` keys are taken ahead. If ``ordered``, a slow look-up delays the answers behind it until
        its deadline.

        Raises:
            LookupUnavailableError: the store cannot be reached. Retry when it is back. An `EpochlineError` that
                ``connect`` raises passes unchanged.
        """
        yield from self._answers(keys, ordered=self._arguments["ordered"])

    def as_they_come(self, keys: Iterable[K]) -> Iterator[Answer[K, V]]:
        """As `each`, but always unordered. Use `Answer.position` to match answers to keys."""
        yield from self._answers(keys, ordered=False)

    @abstractmethod
    def _round(self) -> AbstractContextManager[tuple[asyncio.AbstractEventLoop, LookUp[K]]]:
        """The event loop of some look-ups, and the function that looks a key up in it."""

    def _answers(self, keys: Iterable[K], *, ordered: bool) -> Iterator[Answer[K, V]]:
        numbered = enumerate(keys)
        running: set[asyncio.Task[Answer[K, V]]] = set()
        buffered: dict[int, Answer[K, V]] = {}
        position, concurrency = 0, self._arguments["concurrency"]
        with self._round() as (loop, look_up):
            try:
                while True:
                    while (
                        len(running) + len(buffered) < concurrency and (following := next(numbered, None)) is not None
                    ):
                        running.add(loop.create_task(_answer(look_up, *following)))
                    if not running:
                        return
                    done, running = loop.run_until_complete(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                    for answer in sorted((task.result() for task in done), key=lambda answer: answer.position):
                        if not ordered:
                            yield self._completed(answer)
                            continue
                        buffered[answer.position] = answer
                    while position in buffered:
                        yield self._completed(buffered.pop(position))
                        position += 1
            finally:
                _cancel(loop, running)

    def _completed(self, answer: Answer[K, V]) -> Answer[K, V]:
        if isinstance(answer.error, self._unavailable):
            raise_unreachable(answer.error)
        on_timeout = self._arguments["on_timeout"]
        if answer.outcome is Outcome.TIMED_OUT and on_timeout is not None:
            return replace(answer, value=on_timeout(answer.key))
        return answer


async def _answer(look_up: LookUp[K], position: int, key: K) -> Answer[K, Any]:
    outcome, value, error = await look_up(key)
    return Answer(position=position, key=key, outcome=outcome, value=value, error=error)


def _cancel(loop: asyncio.AbstractEventLoop, running: set[asyncio.Task[Any]]) -> None:
    left = running
    while left:
        for task in left:
            task.cancel()
        # Again after a while: a client that is just connecting may lose a cancellation, as that of Redis does.
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=0.1))
    # Their errors refer to the caller's frame, and so to this set: a circle.
    running.clear()


class UnreachableError(Exception):
    """No connection could be opened, whatever the key. Its argument is the reason."""


def raise_unreachable(error: BaseException) -> NoReturn:
    """Raise an `EpochlineError` as it is, also as the reason of an `UnreachableError`.

    Raises:
        LookupUnavailableError: for every other error.
    """
    cause = error.args[0] if isinstance(error, UnreachableError) else error
    if isinstance(cause, EpochlineError):
        raise cause
    # Neither text nor cause: a client may show its password in them, and logs show both.
    raise LookupUnavailableError(
        f"no connection could be opened for a look-up ({type(cause).__name__}). The store is down, or `connect` uses"
        " a wrong address. No record causes this error, so the whole attempt fails."
    ) from None
