"""Each promise that has tests on servers has one that `make test` runs."""

from pathlib import Path

from tests.commands import python
from tests.representatives import ALWAYS, chosen, cover


def test_every_promise_that_is_shown_on_servers_is_shown_there_by_make_test() -> None:
    python("-m", "tests.representatives", "--check", cwd=Path(__file__).parents[2])

    assert chosen().keys() >= set(ALWAYS)


def test_the_cheapest_tests_that_cite_an_id_most_closely_are_chosen() -> None:
    cites = {
        "dear": {"A1": 0, "A2": 0}, "cheap": {"A1": 0}, "cheap too": {"A2": 0}, "by its module": {"A1": 2, "A3": 2},
        ALWAYS[0]: {"A4": 0}, "as well": {"A4": 0},
    }  # fmt: skip
    seconds = {"dear": 9.0, "cheap": 1.0, "cheap too": 2.0, "by its module": 0.1, "as well": 0.1}

    picked = cover(cites, seconds, ["A1", "A2", "A3", "A4", "A5"])

    assert picked == {"cheap": {"A1"}, "cheap too": {"A2"}, "by its module": {"A3"}, ALWAYS[0]: {"A4"}}
    assert cover(cites, {**seconds, "dear": 0.5}, ["A1", "A2"]).keys() == {"dear", ALWAYS[0]}
