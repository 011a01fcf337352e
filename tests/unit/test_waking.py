"""How often a pipeline may be woken."""

from datetime import timedelta

import pytest

from epochline.protocol.waking import FIRST_PATIENCE, MOST_PATIENCE, Restraint

FIRST, MOST = FIRST_PATIENCE.total_seconds(), MOST_PATIENCE.total_seconds()


@pytest.fixture
def restraint() -> Restraint:
    """Of a pipeline with an interval of ten seconds, woken once at second 0, after epoch 7."""
    one = Restraint(timedelta(seconds=10))
    assert one.admits(7, 0)
    one.woken(7, 0)
    return one


def test_a_waking_that_led_to_an_epoch_is_followed_by_one_after_the_interval(restraint: Restraint) -> None:
    assert not restraint.admits(8, 9.9)
    assert restraint.admits(8, 10)


def test_wakings_that_lead_to_no_epoch_become_rare(restraint: Restraint) -> None:
    """A full sink, a lost log or a scheduler that is down must not pile up runs."""
    now, pauses = 0.0, []
    for _ in range(6):
        begun = now
        while not restraint.admits(7, now):
            now += 1
        restraint.woken(7, now)
        pauses.append(now - begun)

    assert pauses == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, MOST, MOST]
    assert restraint.admits(8, now + 10), "an epoch came of it"


def test_a_long_interval_is_kept_in_any_case() -> None:
    restraint = Restraint(timedelta(hours=1))
    restraint.woken(1, 0)

    assert not restraint.admits(1, 3599)
    assert restraint.admits(1, 3600)
