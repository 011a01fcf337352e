"""Connections of a look-up: opened when they are needed, never too many, the one used last taken first (LIFO)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from epochline.errors import DeclarationError

C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many connections there may be. None is opened ahead of a look-up that needs it.

    Args:
        max_total: open at once, those included whose look-up timed out and has not come back yet.
        max_idle: kept for later when nobody uses them.
        max_wait: for one to become free; None: as long as the look-up has.
        evict_after: a connection that nobody used for so long is closed when the next one is taken.
    """

    max_total: int = 10
    max_idle: int = 10
    max_wait: timedelta | None = None
    evict_after: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        if self.max_total < 1:
            raise DeclarationError("PoolLimits.max_total: there must be one connection at least")
        if self.max_idle < 0:
            raise DeclarationError("PoolLimits.max_idle: must not be negative; 0 keeps no connection")
        if self.max_wait is not None and self.max_wait <= timedelta(0):
            raise DeclarationError(
                "PoolLimits.max_wait: must be longer than nothing; None waits as long as the look-up"
            )


class PoolExhaustedError(Exception):
    """No connection became free in time."""


@dataclass(slots=True)
class _Idle(Generic[C]):
    connection: C
    since: float


class Pool(Generic[C]):
    """A bounded stack of connections, for many threads.

    Args:
        connect: opens one.
        close: closes one; what it raises is ignored.
        limits: how many there may be.
        now: a clock that only goes forward, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        limits: PoolLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect, self._close, self._limits, self._now = connect, close, limits, now
        # Reentrant, as `close` may be called by the garbage collector in a thread that is in here.
        self._changed = threading.Condition(threading.RLock())
        self._idle: list[_Idle[C]] = []
        self._total = 0
        self._closed = False

    def take(self, until: float) -> tuple[C, bool]:
        """A connection for the caller alone, and whether it was used before.

        Raises:
            PoolExhaustedError: none became free until then.
            Exception: whatever ``connect`` raises.
        """
        for stale in self._stale():
            self.drop(stale)
        with self._changed:
            while not self._idle and self._total >= self._limits.max_total:
                left = until - self._now()
                if left <= 0:
                    raise PoolExhaustedError
                self._changed.wait(left)
            if self._idle:
                return self._idle.pop().connection, True
            self._total += 1
        return self._opened(), False

    def replace(self, connection: C) -> C:
        """A new connection in the place of one that is not to be used again."""
        self._close_quietly(connection)
        return self._opened()

    def give(self, connection: C) -> bool:
        """Keep a connection for the next who takes one; False where there is no room, then the caller drops it."""
        with self._changed:
            if self._closed or len(self._idle) >= self._limits.max_idle:
                return False
            self._idle.append(_Idle(connection, self._now()))
            self._changed.notify()
            return True

    def drop(self, connection: C) -> None:
        """Close a connection; another may be opened in its place."""
        self._close_quietly(connection)
        self._leave()

    def close(self) -> None:
        """Close what is idle now, and everything else as it comes back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            self.drop(one.connection)

    def _stale(self) -> list[C]:
        with self._changed:
            oldest = self._now() - self._limits.evict_after.total_seconds()
            stale = [one.connection for one in self._idle if one.since < oldest]
            self._idle = [one for one in self._idle if one.since >= oldest]
            return stale

    def _opened(self) -> C:
        try:
            return self._connect()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        with self._changed:
            self._total -= 1
            self._changed.notify()

    def _close_quietly(self, connection: C) -> None:
        with suppress(Exception):
            self._close(connection)
