"""The thread that copies rows while a task reads on: order, bounds, and that no error of it is lost."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from epochline.spark.copying import CopyThread


class RefusedError(Exception):
    """What a copy raises."""


def refused() -> None:
    raise RefusedError


def task(*batches: Iterable[Callable[[], object]], then: BaseException | None = None) -> None:
    """Copy batches, and end or fail."""
    with CopyThread() as thread:
        for copies in batches:
            thread.copy([*copies])
        if then is not None:
            raise then


def test_batches_are_copied_in_order_and_all_at_the_end_of_the_block() -> None:
    seen: list[tuple[int, str]] = []
    task(*([partial(seen.append, (number, sink)) for sink in "ab"] for number in range(50)))
    assert seen == [(number, sink) for number in range(50) for sink in "ab"]


def test_a_task_makes_one_batch_while_one_is_copied_and_no_more() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    made: list[int] = []

    def waiting() -> None:
        begun.set()
        goes_on.wait(60)

    def batches() -> None:
        with CopyThread() as thread:
            for number in range(3):
                made.append(number)
                thread.copy([waiting])

    running = threading.Thread(target=batches)
    running.start()
    assert begun.wait(60)
    running.join(0.2)
    assert made == [0, 1]
    goes_on.set()
    running.join(60)
    assert made == [0, 1, 2]


@pytest.mark.parametrize("more", [0, 1], ids=["at the end", "with the next batch"])
def test_an_error_of_a_copy_is_raised_and_nothing_is_copied_after_it(more: int) -> None:
    """INV-9: no row is missing unseen."""
    seen: list[str] = []
    after = partial(seen.append, "copied")
    with pytest.raises(RefusedError):
        task([refused, after], *[[after]] * more)
    assert not seen


def test_an_error_of_a_copy_comes_before_that_of_a_later_batch() -> None:
    """A task whose attempt was fenced does not report a record that it read meanwhile; Spark's text has one error."""
    with pytest.raises(RefusedError) as raised:
        task([refused], then=ValueError("the next batch cannot be parsed"))
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("error", [ValueError("unfit"), KeyboardInterrupt()])
def test_an_error_of_the_task_waits_for_the_copy_and_stays(error: BaseException) -> None:
    seen: list[str] = []
    with pytest.raises(type(error)):
        task([partial(threading.Event().wait, 0.2), partial(seen.append, "copied")], then=error)
    assert seen == ["copied"]
