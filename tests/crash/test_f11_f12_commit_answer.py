"""The connection breaks around any COMMIT of an epoch's life: before it arrives, or before its answer does."""

import pytest

from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.checker import assert_exact, recover
from tests.crash.line import Line
from tests.crash.proxy import Cut, Proxy
from tests.integration.kafka_topics import group_offsets


@pytest.mark.fault("F11")
def test_an_answer_lost_at_any_commit_of_a_run_is_settled_without_a_second_effect(proxied: tuple[Line, Proxy]) -> None:
    """I8, INV-5: the server committed, and the client cannot know."""
    _broken_at_each_commit(*proxied, Cut.AFTER)


@pytest.mark.slow
@pytest.mark.fault("F12")
def test_a_connection_cut_before_any_commit_of_a_run_leaves_nothing_half_done(proxied: tuple[Line, Proxy]) -> None:
    """I8, INV-2: the server rolls back; the retry commits once."""
    _broken_at_each_commit(*proxied, Cut.BEFORE)


def _broken_at_each_commit(line: Line, proxy: Proxy, where: Cut) -> None:
    before = proxy.commits
    assert line.run() == "success"
    commits_of_a_run = proxy.commits - before
    assert commits_of_a_run > 10
    for number in range(1, commits_of_a_run + 1):
        line.some(3, f"before commit {number}")
        proxy.cut_at(where, number)
        recover(line)
        assert proxy.cuts == number, f"the {number}th COMMIT never came"


@pytest.mark.fault("F11", "F12")
@pytest.mark.parametrize(
    ("where", "outcome"),
    [(Cut.AFTER, CommitOutcome.ALREADY_COMMITTED), (Cut.BEFORE, CommitOutcome.COMMITTED)],
    ids=["answer lost", "never arrived"],
)
def test_a_commit_asks_the_ledger_what_became_of_it(
    proxied: tuple[Line, Proxy], where: Cut, outcome: CommitOutcome
) -> None:
    """I8, INV-5: within the same call, and never by guessing."""
    line, proxy = proxied
    line.to_sealed("run")
    proxy.cut_at(where, 2)  # before it, the call asks the ledger which sinks to ask

    receipt = line.commit(1)

    assert proxy.cuts == 1
    assert receipt.outcome is outcome
    assert line.state() is EpochState.COMMITTED
    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == line.heads()
    assert_exact(line)
