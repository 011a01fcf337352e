"""Four semantics over every kind of sink, killed at each place of commit and publish (G1 to G4, P3)."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from epochline.declare.external import Files
from epochline.failpoints import KILLED, known_failpoints
from tests.crash.cases import NewCase
from tests.crash.scenarios import ONE, sealed
from tests.crash.semantics_page import DATA, PAGE, SINKS, Outcomes, outcomes_of, read, rendered, title, write, written
from tests.crash.shown import rows_in_files, values_in_topic
from tests.crash.split_commit import SEMANTICS, Semantics
from tests.crash.steps import Case

WRITE = "EPOCHLINE_WRITE_SEMANTICS"
FIRST = "commit.targets.apply"
"""Before it, nothing is written that a rollback would not take back, in any of the four."""
EXACT, LOST, DOUBLED = {"exact"}, {"exact", "lost"}, {"exact", "doubled"}
REPEATS = {"append": DOUBLED, "upsert": EXACT, "add": DOUBLED, "topic": DOUBLED, "files": EXACT}
POSSIBLE = {
    "at_most_once": dict.fromkeys(SINKS, LOST),
    "at_least_once": REPEATS,
    "log_then_replay": REPEATS,
    "exactly_once": dict.fromkeys(SINKS, EXACT),
}
"""What may become of the records of an epoch in each sink, whose process is killed somewhere and started again."""


def case(new_case: NewCase, semantics: Semantics) -> Case:
    exact = semantics == "exactly_once"
    return new_case(sealed, kind="every sink" if exact else "every sink at least once", semantics=semantics)


def outcomes(line: Case) -> Outcomes:
    """What became of the records that the epoch read, in each sink."""
    expected = Counter(value for value in line.produced.values() if value.isascii())
    found = {
        sink: Counter({value.encode(): count for value, count in line.query(f"SELECT value, {times} FROM {table}")})
        for sink, table, times in (
            ("append", f"{line.name} GROUP BY 1", "count(*)::int"),
            ("upsert", f"{line.name}_upsert GROUP BY 1", "count(*)::int"),
            ("add", f"{line.name}_add", "one"),
        )
    }
    (topic,) = line.pipeline.topics
    found["topic"] = values_in_topic(line.bootstrap, topic.topic)
    (files,) = (one for one in line.pipeline.external if isinstance(one, Files))
    found["files"] = Counter(value for _, _, value in rows_in_files(files).elements())
    return {sink: judged(expected, rows) for sink, rows in found.items()}


def judged(expected: Counter[bytes], rows: Counter[bytes]) -> str:
    said = [word for word, which in (("lost", expected - rows), ("doubled", rows - expected)) if which]
    return " and ".join(said) or "exact"


def killed_at(place: str, new_case: NewCase, semantics: Semantics) -> Outcomes:
    line = case(new_case, semantics)
    at = {"failpoint": f"{place}:exit"} if place in known_failpoints() else {"dies": place}

    ended = line.take("split_commit", ONE, **at)

    assert ended.returncode in (KILLED, -signal.SIGKILL), ended.answer
    assert line.take("split_commit", ONE).returncode == 0
    return outcomes(line)


@pytest.mark.slow
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_each_semantics_loses_doubles_or_keeps_what_its_name_says_wherever_it_is_killed(
    semantics: Semantics, new_case: NewCase, tmp_path: Path
) -> None:
    """G1, G2, G3, G4, P3, X11: over the product's own sinks. Only one transaction gives each sink the input at each place."""
    line, trace = case(new_case, semantics), tmp_path / "passed"
    trace.touch()
    assert line.take("split_commit", ONE, trace=trace).said == "2 shown"
    assert outcomes(line) == dict.fromkeys(SINKS, "exact"), "nothing is killed"

    places = list(dict.fromkeys(trace.read_text().splitlines()))
    places = places[places.index(FIRST) :]
    killed = [(place, killed_at(place, new_case, semantics)) for place in places]

    if os.environ.get(WRITE):
        write(semantics, killed)
    assert {sink: {of[sink] for _, of in killed} for sink in SINKS} == POSSIBLE[semantics]


def test_the_page_shows_what_these_tests_demand_and_is_what_they_write() -> None:
    """G4: a person reads of each semantics and sink what can happen."""
    places = read()

    for semantics in SEMANTICS:
        of_one = [place for place in places if place.semantics == semantics]
        assert outcomes_of(of_one) == POSSIBLE[semantics], title(semantics)
        assert all(place.date and place.commit for place in of_one)
    assert written(places) == DATA.read_text()
    assert rendered(places) == PAGE.read_text()
