"""A few histories of `tests.integration.operators_machine`; ``EPOCHLINE_MACHINE_EXAMPLES`` says how many."""

import itertools
import os

import pytest

from tests.integration.machine_kinds import FACTORS, KINDS, Kind, pairs_of
from tests.integration.machine_world import Servers
from tests.integration.operators_machine import TASKS, machine, made_up, seed_of_histories

ASKED = os.environ.get("EPOCHLINE_MACHINE_EXAMPLES")
EXAMPLES = int(ASKED or "50") // 5
"""A step takes seconds, because each ends with what the whole target, folder and ledger hold."""
OF_RUNS = {"fenced", "at once", *(f"{task} lost its answer" for task in TASKS)}


def test_each_two_things_that_a_pipeline_can_have_together_are_in_some_kind() -> None:
    every = [Kind(**dict(zip(FACTORS, values, strict=True))) for values in itertools.product(*FACTORS.values())]

    assert {pair for kind in KINDS for pair in pairs_of(kind)} == {
        pair for kind in every if kind.possible for pair in pairs_of(kind)
    }
    assert len(KINDS) < 24 < len(every)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pipeline_of_each_kind_holds_what_a_simple_model_says(machine_servers: Servers, kind: Kind) -> None:
    """INV-1, INV-2, INV-9, I1: with bad records, tombstones, and the savepoint, requeue and restore of its kind."""
    one = machine(machine_servers)()
    one.a_pipeline(startup="earliest", existing=False, kind=kind)
    one.produce_bad(1)
    one.produce_gone(0)
    one.a_run_goes_through()
    one._all_holds()
    one.teardown()


@pytest.mark.timeout(120 + 60 * EXAMPLES)
def test_no_history_of_operators_loses_or_doubles_a_record(machine_servers: Servers) -> None:
    """INV-1 to INV-9: lost connections, zombies, runs at once; logs truncated, made again, put back, restored, taken over."""
    met = made_up(machine_servers, EXAMPLES, chosen_by=seed_of_histories() if ASKED else None)

    assert not OF_RUNS - set(met), dict(met)
