"""A bounded pool of connections. It opens connections on demand and takes the most recently used one first (LIFO)."""

import threading
import time
from collections import deque
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


class Pool(Generic[C]):
    """A bounded stack of connections for several threads. ``now`` is a monotonic clock."""

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        limits: PoolLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect, self._close, self._limits, self._now = connect, close, limits, now
        # A permit for each connection that is taken. One is only opened if none is idle, so there are never more.
        self._room = threading.Semaphore(limits.max_total)
        self._idle: deque[tuple[float, C]] = deque()
        # Reentrant: the garbage collector may call `close` in a thread that holds the lock.
        self._giving = threading.RLock()
        self._closed = False

    def take(self, until: float) -> tuple[C, bool]:
        """Returns a connection for exclusive use, and whether it was used before.

        Raises:
            PoolExhaustedError: no connection became free until ``until``, on the pool's clock.
            Exception: raised by ``connect``.
        """
        if not self._room.acquire(timeout=max(0.0, until - self._now())):
            raise PoolExhaustedError
        oldest = self._now() - self._limits.evict_after.total_seconds()
        with suppress(IndexError):
            while self._idle[0][0] < oldest:
                self._close_quietly(self._idle.popleft()[1])
            return self._idle.pop()[1], True
        return self._open(), False

    def replace(self, connection: C) -> C:
        """Close a connection and return a new one in its place."""
        self._close_quietly(connection)
        return self._open()

    def give(self, connection: C) -> bool:
        """Put a connection back. Returns False if the pool is full or closed: the caller must `drop` it."""
        with self._giving:
            if self._closed or len(self._idle) >= self._limits.max_idle:
                return False
            self._idle.append((self._now(), connection))
        self._room.release()
        return True

    def drop(self, connection: C) -> None:
        """Close a connection that was taken, and make room for another one."""
        self._close_quietly(connection)
        self._room.release()

    def close(self) -> None:
        """Close idle connections now. `give` refuses the others from now on."""
        with self._giving:
            self._closed = True
        with suppress(IndexError):
            while True:
                self._close_quietly(self._idle.pop()[1])

    def _open(self) -> C:
        try:
            return self._connect()
        except BaseException:
            self._room.release()
            raise

    def _close_quietly(self, connection: C) -> None:
        with suppress(Exception):
            self._close(connection)
