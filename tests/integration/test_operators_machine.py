"""A few histories of `tests.integration.operators_machine`; ``EPOCHLINE_MACHINE_EXAMPLES`` says how many."""

import os
from collections.abc import Callable

import pytest

from epochline.local.stack import Stack
from tests.integration.operators_machine import TASKS, made_up

EXAMPLES = int(os.environ.get("EPOCHLINE_MACHINE_EXAMPLES", "50")) // 5
"""A step takes seconds, because each ends with what the whole target, folder and ledger hold."""
OF_RUNS = {"fenced", "at once", *(f"{task} lost its answer" for task in TASKS)}


@pytest.mark.timeout(120 + 60 * EXAMPLES)
def test_no_history_of_operators_loses_or_doubles_a_record(stack: Stack, new_database: Callable[[], str]) -> None:
    """INV-1 to INV-9: lost connections, zombies, runs at once; logs truncated, made again, put back, restored, taken over."""
    met = made_up(stack, new_database, EXAMPLES, always_the_same="EPOCHLINE_MACHINE_EXAMPLES" not in os.environ)

    assert not OF_RUNS - set(met), dict(met)
