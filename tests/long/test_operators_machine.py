"""Ten thousand steps of `tests.integration.operators_machine`."""

import pytest

from tests.integration.machine_kinds import KINDS
from tests.integration.machine_world import Servers
from tests.integration.operators_machine import STEPS, made_up, seed_of_histories

HISTORIES = 10_000 // STEPS
EXPECTED = {
    "epoch", "sealed and left", "made again", "truncated", "put back", "behind", "accept-ledger", "adopt-topic",
    "savepoint", "restore", "restore refused", "extend-back", "drop", "taken over",
    "window shown",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(20 * HISTORIES)
def test_ten_thousand_steps_of_operators_lose_and_double_no_record(machine_servers: Servers) -> None:
    """INV-1, INV-2, INV-8, INV-9; and everything that can happen did."""
    met = made_up(machine_servers, HISTORIES, chosen_by=seed_of_histories())

    assert not (EXPECTED | set(map(str, KINDS))) - set(met), dict(met)
