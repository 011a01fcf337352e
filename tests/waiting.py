"""Waiting until something that goes on elsewhere has come about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(what: str, check: Callable[[], Any], seconds: float = 60.0, every: float = 0.02) -> Any:
    """Ask until the answer is true, and give the answer.

    Raises:
        AssertionError: the answer was not true within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"within {seconds:.0f} s it did not happen that {what}"
        time.sleep(every)
    return answer


def wait_until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for a condition that says by itself what is waited for."""
    wait_for("the condition holds", holds, seconds)
