"""A bounded pool of connections. It opens connections on demand and takes the most recently used one first (LIFO)."""

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
    """Limits of a connection pool.

    Args:
        max_total: connections open at once, including those of look-ups that timed out and still run.
        max_idle: unused connections to keep.
        max_wait: how long to wait for a free connection; None: until the deadline of the look-up.
        evict_after: how long a connection may stay unused. Older ones are closed when the next one is taken.
    """

    max_total: int = 10
    max_idle: int = 10
    max_wait: timedelta | None = None
    evict_after: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        if self.max_total < 1:
            raise DeclarationError("PoolLimits.max_total: must be 1 or more")
        if self.max_idle < 0:
            raise DeclarationError("PoolLimits.max_idle: must not be negative; 0 keeps no connection")
        if self.max_wait is not None and self.max_wait <= timedelta(0):
            raise DeclarationError(
                "PoolLimits.max_wait: must be positive; None waits until the deadline of the look-up"
            )


class PoolExhaustedError(Exception):
    """No connection became free in time."""


@dataclass(slots=True)
class _Idle(Generic[C]):
    connection: C
    since: float


class Pool(Generic[C]):
    """A bounded, thread-safe stack of connections. ``close`` may raise anything; ``now`` is a monotonic clock."""

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        limits: PoolLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect, self._close, self._limits, self._now = connect, close, limits, now
        # Reentrant: the garbage collector may call `close` in a thread that holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._idle: list[_Idle[C]] = []
        self._total = 0
        self._closed = False

    def take(self, until: float) -> tuple[C, bool]:
        """Returns a connection for exclusive use, and whether it was used before.

        Raises:
            PoolExhaustedError: no connection became free until ``until``, on the pool's clock.
            Exception: raised by ``connect``.
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
        return self._open(), False

    def replace(self, connection: C) -> C:
        """Close a connection and return a new one in its place."""
        self._close_quietly(connection)
        return self._open()

    def give(self, connection: C) -> bool:
        """Put a connection back. Returns False if the pool is full or closed: the caller must `drop` it."""
        with self._changed:
            if self._closed or len(self._idle) >= self._limits.max_idle:
                return False
            self._idle.append(_Idle(connection, self._now()))
            self._changed.notify()
            return True

    def drop(self, connection: C) -> None:
        """Close a connection that was taken, and make room for another one."""
        self._close_quietly(connection)
        self._make_room()

    def close(self) -> None:
        """Close idle connections now. `give` refuses the others from now on."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for unused in idle:
            self.drop(unused.connection)

    def _stale(self) -> list[C]:
        with self._changed:
            oldest = self._now() - self._limits.evict_after.total_seconds()
            stale = [idle.connection for idle in self._idle if idle.since < oldest]
            self._idle = [idle for idle in self._idle if idle.since >= oldest]
            return stale

    def _open(self) -> C:
        try:
            return self._connect()
        except BaseException:
            self._make_room()
            raise

    def _make_room(self) -> None:
        with self._changed:
            self._total -= 1
            self._changed.notify()

    def _close_quietly(self, connection: C) -> None:
        with suppress(Exception):
            self._close(connection)
