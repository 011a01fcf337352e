"""Every state of the protocol within the bounds of each world, and the way to a lost or doubled record without a guard."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.__main__ import data_of, page
from tests.model.guards import MUTANTS, TOPIC_MUTANTS, Mutant
from tests.model.protocol import Bounds
from tests.model.search import search, search_without
from tests.model.worlds import WORLDS

Record = Callable[[str, object], None]


@pytest.mark.parametrize(
    "world", [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.takes_long else []) for one in WORLDS]
)
def test_no_state_within_the_bounds_breaks_an_invariant(
    world: Bounds, record_property: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-1 to INV-8, S9, I7, P11 to P13: over every interleaving of the product's own use cases, and every fault of the world."""
    found = search(world)

    with capsys.disabled():
        print(f"\n{found}")
    record_property("model", str(found))
    assert found.counterexample is None, "\n".join(found.counterexample)
    assert found.met >= world.sometimes, f"never met: {sorted(world.sometimes - found.met)}"


@pytest.mark.parametrize("mutant", [*MUTANTS, *TOPIC_MUTANTS], ids=str)
def test_the_model_finds_out_when_a_guard_is_missing(mutant: Mutant, record_property: Record) -> None:
    """The shortest way from the first state to the broken invariant, over the product's text without the guard."""
    found = search_without(mutant, unconstrained=mutant.unconstrained)

    assert found.counterexample is not None, f"nobody noticed: {found}"
    record_property("counterexample", "\n".join(found.counterexample))
    assert mutant.breaks in found.counterexample[-1]


def test_the_chain_s_constraints_stand_behind_the_compare_and_swap() -> None:
    """INV-1: without the compare-and-swap, PostgreSQL itself refuses the commit; nothing is lost or doubled."""
    found = search_without(MUTANTS[0], unconstrained=False)

    assert found.counterexample is not None
    assert "PostgreSQL refused" in found.counterexample[-1]


def test_the_page_is_made_of_the_data() -> None:
    """docs/model.md is what the last search wrote; each guard of today has its shortest way in the data."""
    file = Path(__file__).parents[2] / "docs" / "model.md"
    searched = json.loads(data_of(file).read_text())

    assert page(searched) == file.read_text()
    assert {entry["guard"] for entry in searched["without a guard"]} == {
        mutant.name for mutant in (*MUTANTS, *TOPIC_MUTANTS)
    }
    assert all(entry["shortest way"] for entry in searched["without a guard"])
