"""A few histories of `tests.integration.operators_machine`; ``EPOCHLINE_MACHINE_EXAMPLES`` says how many."""

import os
from collections.abc import Callable

import pytest

from epochline.local.stack import Stack
from tests.integration.operators_machine import made_up

EXAMPLES = int(os.environ.get("EPOCHLINE_MACHINE_EXAMPLES", "50")) // 10
"""A step takes some ten times as long here as in the machine of one ledger, which the variable is meant for."""


@pytest.mark.timeout(120 + 40 * EXAMPLES)
def test_no_history_of_operators_loses_or_doubles_a_record(stack: Stack, new_database: Callable[[], str]) -> None:
    """INV-1, INV-2, INV-8, INV-9: truncated, made again, put back, restored, extended back, taken over."""
    made_up(stack, new_database, EXAMPLES, always_the_same="EPOCHLINE_MACHINE_EXAMPLES" not in os.environ)
