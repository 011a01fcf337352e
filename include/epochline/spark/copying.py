"""Copies rows in a thread of its own, while the task reads and parses the next ones."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

Copy = Callable[[], object]


class CopyThread:
    """Runs copies in their order in a thread, those of one batch at a time. At the end of its block all have ended.

    So a task holds two batches at most: one that is copied, and one that it makes. After an error nothing more is
    copied, and the task raises it: with the next batch, at the end of the block, or in place of an error that the task
    met meanwhile, which lies behind it in the input.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "epochline-copy")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def copy(self, copies: Sequence[Copy]) -> None:
        """Run the copies of a batch soon. Raises the error of an earlier one."""
        self._end_last()
        self._last = self._thread.submit(_run, copies)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown()
        if kind is None or issubclass(kind, Exception):
            self._end_last()

    def _end_last(self) -> None:
        last, self._last = self._last, None
        failed = None if last is None else last.exception()
        if failed is not None:
            # Without the task's own error, if it has one: Spark's text would show both.
            raise failed from failed.__cause__


def _run(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy()
