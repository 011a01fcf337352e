"""Answers to keys, each by its deadline: what both kinds of look-up share, and answers as a column of Arrow batches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import pyarrow as pa

from epochline.arrow.cast.batches import ERROR, marks, require_columns
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
    """Looks keys up, and answers every key within the time-out. Its event loop runs in the thread that iterates.

    Create a look-up at the top level of the module with the pipeline's functions. It is shipped to the executors with
    them. It connects at the first look-up, keeps its connections between batches, and closes them when it is garbage
    collected.

    Args:
        concurrency: how many look-ups run at once.
        timeout: of each look-up, including the wait for a connection.
        ordered: whether `each` yields answers in the order of the keys, or as they come.
        on_timeout: called once for each key that timed out, in the thread that iterates over the answers. What it
            returns becomes the value of the answer.

    Raises `DeclarationError` if ``concurrency`` is below 1, or ``timeout`` is not positive.
    """

    # ``arguments`` are all arguments of the constructor: a copy is made with them on an executor. Errors of a look-up
    # that are ``unavailable`` mean that the store cannot be reached.
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


def over_batches(
    lookup: KeyedLookup[Any, V], *, key: str, column: str, kind: pa.DataType
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that adds a column of looked-up values to a batch. Rows keep their number and order.

    A row whose look-up failed or timed out gets an ``_error``; the pipeline's policy for bad records applies to it.
    Rows with an ``_error`` or ``_skip``, and rows whose key is NULL, are not looked up: their value is NULL. An
    ``_error`` names the class of the exception only, because its text could show a password or the key.

    In a ``transform``, pass ``lambda batches: map(function, batches)`` to ``mapInArrow``.

    Args:
        lookup: finds the values.
        key: the column with the keys.
        column: the new column.
        kind: the new column's Arrow type. A row whose value does not have this type gets an ``_error``.
    """
    what = f"the look-up of {column}"

    def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
        require_columns(what, batch, (key,))
        reasons, skipped = marks(what, batch)
        keys = batch.column(key).to_pylist()
        left_out = {*reasons, *skipped}
        rows = [row for row, value in enumerate(keys) if value is not None and row not in left_out]
        values: list[V | None] = [None] * len(keys)
        for answer in lookup.as_they_come(keys[row] for row in rows):
            row = rows[answer.position]
            values[row] = answer.value
            if (reason := _reason(what, lookup.timeout, answer)) is not None:
                reasons[row] = reason
        looked_up = _array(what, values, kind, reasons)
        kept = [name for name in batch.schema.names if name != ERROR]
        errors = pa.array([reasons.get(row) for row in range(len(keys))], pa.string())
        return pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in kept), looked_up, errors], names=[*kept, column, ERROR]
        )

    return enrich


def _reason(what: str, timeout: timedelta, answer: Answer[Any, Any]) -> str | None:
    if answer.outcome is Outcome.FAILED:
        return f"{what} failed ({type(answer.error).__name__})"
    if answer.outcome is Outcome.TIMED_OUT and answer.value is None:
        return f"{what} timed out after {timeout.total_seconds():g} s"
    return None


def _array(what: str, values: list[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        valid = [_value_or_none(value, kind) for value in values]
        for row, (value, kept) in enumerate(zip(values, valid, strict=True)):
            if value is not None and kept is None:
                reasons.setdefault(row, f"{what} found a value of type {type(value).__name__}, not {kind}")
        return pa.array(valid, kind)


def _value_or_none(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError):
        return None
    return value
