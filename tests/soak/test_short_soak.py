"""The soak, short: the schedule of faults is the seed's, and a minute of them loses and doubles nothing."""

from tests.soak.__main__ import main
from tests.soak.faults import BY_OPERATORS, ON_TASKS, SERVERS, schedule
from tests.soak.topics import verdict


def test_a_seed_has_one_schedule_and_ten_minutes_of_it_hold_every_kind_of_fault() -> None:
    """F37: each kind comes once before any comes twice by chance."""
    planned = schedule(7, 600)

    assert schedule(7, 600) == planned != schedule(8, 600)
    assert {fault.kind for fault in planned} == {*SERVERS, *ON_TASKS, *BY_OPERATORS}
    assert len(planned) >= 60
    assert planned == sorted(planned, key=lambda fault: fault.at)


def test_a_topic_is_exact_only_with_each_record_once_and_each_key_in_its_order() -> None:
    """E4b: of one key are the numbers 0, 12 and 24; 1 is of another."""
    produced = ["p 0", "p 1", "p 12", "p 24"]

    exact = verdict("t", ["p 1", "p 0", "p 12", "p 24"], [*produced, "p 0"], produced)
    wrong = verdict("t", ["p 12", "p 12", "p 1", "p 9"], [], produced)
    disordered = verdict("t", ["p 0", "p 24", "p 12", "p 1"], produced, produced)

    assert (exact.exact, exact.hidden) == (True, 1)
    assert (wrong.missing, wrong.duplicates, wrong.strangers) == (2, 1, 1)
    assert (disordered.exact, disordered.disordered) == (False, 1)


def test_a_minute_of_faults_loses_nothing_and_doubles_nothing() -> None:
    """F37, I1 to I8: kills, stops, cut connections, restarts of PostgreSQL and Kafka, aborts, clears, double triggers."""
    assert main(["--minutes", "1", "--seed", "20261121"]) == 0
