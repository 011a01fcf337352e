"""The same task twice at once, and zombies: processes that are stopped, overtaken, and woken."""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from epochline import Files
from epochline.operations import tidy
from epochline.operations.janitor import Tidied
from epochline.protocol.epoch import EpochState
from tests.checker import recover
from tests.crash.cases import NewCase
from tests.crash.scenarios import ONE, TWO, left_planned, planned, sealed, staged
from tests.crash.steps import Case
from tests.waiting import wait_for

LOCK_TIMEOUT = 20.0
"""Seconds; a transaction may then stand still for 10."""


# F6.


@pytest.mark.fault("F6")
def test_two_commits_stopped_before_the_transaction_commit_once(new_case: NewCase) -> None:
    """I5, INV-5: the second commit returns the receipt of the first."""
    line = new_case(sealed)
    both = [line.stop_at("commit.transaction", "commit", ONE) for _ in range(2)]

    since = time.monotonic()
    for one in both:
        one.go_on()

    assert sorted(one.ended().said for one in both) == ["already_committed", "committed"]
    recover(line, since=since)


@pytest.mark.fault("F6")
def test_a_commit_waits_for_the_one_that_is_about_to_commit_and_shows_its_receipt(new_case: NewCase) -> None:
    """I5: the row lock of the epoch; two at the same COMMIT there cannot be."""
    line = new_case(sealed, lock_timeout=60)
    first = line.stop_at("commit.commit", "commit", ONE)
    second = line.start("commit", ONE)
    line.until_a_session_waits_for_a_lock()

    since = time.monotonic()
    first.go_on()

    assert (first.ended().said, second.ended().said) == ("committed", "already_committed")
    recover(line, since=since)


@pytest.mark.fault("F6", "F17")
def test_a_commit_that_waited_too_long_says_that_a_retry_helps(new_case: NewCase) -> None:
    """I5: a named error, and nothing was changed; the retry shows the receipt."""
    line = new_case(sealed, lock_timeout=1.0)
    # It has asked Kafka by then: the first may stand still in its transaction for ten seconds.
    second = line.stop_at("commit.transaction", "commit", ONE)
    first = line.stop_at("commit.commit", "commit", ONE)

    since = time.monotonic()
    second.go_on().ended()

    assert (second.error, second.answer["retryable"]) == ("LockTimeoutError", True)
    assert first.go_on().ended().said == "committed"
    assert line.take("commit", ONE).said == "already_committed"
    recover(line, since=since)


@pytest.mark.fault("F6", "F7")
def test_two_pre_commits_of_one_epoch_leave_the_newer_attempt_alone(new_case: NewCase) -> None:
    """I5, INV-4: the older one staged everything and stands before its seal, which is refused."""
    line = new_case(planned)
    older = line.stop_at("seal.transaction", "pre_commit", ONE)

    since = time.monotonic()
    assert line.take("pre_commit", ONE).said == "41"

    assert older.go_on().ended().error == "EpochFencedError"
    asked = "SELECT state, attempt FROM epochline.epochs WHERE pipeline = %s"
    assert line.query(asked, line.name) == [("PRE_COMMITTED", 2)]
    line.commit(1)
    recover(line, since=since)


@pytest.mark.fault("F6")
def test_two_plans_of_one_run_write_one_epoch(new_case: NewCase) -> None:
    """INV-3: the other one has to try again, and then goes on with the same epoch."""
    line = new_case(lock_timeout=60)
    first = line.stop_at("intent.epochs.insert", "plan", ONE)
    second = line.start("plan", ONE)
    line.until_a_session_waits_for_a_lock()

    since = time.monotonic()
    first.go_on()

    assert first.ended().said == "planned"
    ended = second.ended()
    assert ended.answer.get("said") == "resumed" or (ended.error == "PlanChangedError" and ended.answer["retryable"])
    assert line.take("plan", ONE).said == "resumed"
    assert line.query("SELECT count(*) FROM epochline.epochs WHERE pipeline = %s", line.name) == [(1,)]
    assert line.run(ONE) == "success"
    recover(line, since=since)


# F7, F8: no human; a zombie that holds locks loses them before the next attempt gives up.


@pytest.mark.fault("F7", "F15")
def test_a_zombie_before_its_commit_is_overtaken_and_then_shows_the_receipt(new_case: NewCase) -> None:
    """I2, I5, I7, INV-5: it holds every lock of the commit; the server takes them before the next try gives up."""
    line = new_case(sealed, lock_timeout=LOCK_TIMEOUT)
    zombie = line.stop_at("commit.commit@1", "commit", ONE)
    since = time.monotonic()

    assert line.take("commit", ONE).said == "committed"

    assert zombie.go_on().ended().said == "already_committed"
    recover(line, since=since)


@pytest.mark.fault("F7", "F15")
def test_a_zombie_before_the_commit_of_its_seal_is_overtaken(new_case: NewCase) -> None:
    """I5, I7, INV-4: the retry becomes attempt 2 without an error; the zombie's seal is rolled back."""
    line = new_case(planned, lock_timeout=LOCK_TIMEOUT)
    zombie = line.stop_at("seal.commit", "pre_commit", ONE)
    since = time.monotonic()

    assert line.take("pre_commit", ONE).said == "41"

    woken = zombie.go_on().ended()
    assert (woken.error, woken.answer["retryable"]) == ("LedgerUnavailableError", True)
    assert line.take("pre_commit", ONE).said == "sealed already"
    assert line.query("SELECT attempt FROM epochline.epochs WHERE pipeline = %s", line.name) == [(2,)]
    assert line.take("commit", ONE).said == "committed"
    recover(line, since=since)


@pytest.mark.fault("F7")
def test_a_zombie_of_a_left_run_wakes_after_another_run_took_over(new_case: NewCase) -> None:
    """I2, I5, INV-4: its lease passed while it stood before the seal; run two aborted its epoch and read the range."""
    line = new_case(planned)
    zombie = line.stop_at("seal.transaction", "pre_commit", ONE)
    line.query("UPDATE epochline.epoch SET lease_until = clock_timestamp() - interval '1 second'")

    since = time.monotonic()
    assert line.run(TWO) == "success"

    assert zombie.go_on().ended().error == "EpochFencedError"
    assert line.state(1) is EpochState.ABORTED
    assert line.state(2) is EpochState.COMMITTED
    recover(line, since=since)


# F7: the lease ends while the seal is at work.

FREE_ROW = "SELECT 1 FROM epochline.epoch WHERE pipeline = %s FOR UPDATE SKIP LOCKED"
PAST = "UPDATE epochline.epoch SET lease_until = clock_timestamp() - interval '1 second' WHERE pipeline = %s"


def tidied(line: Case) -> Tidied:
    """What a janitor ends that waits for no lease to be long past, and takes no second look."""
    return tidy(line.ledger, line.run_of("the janitor"), stale_after=timedelta(0), sleep=lambda _: None)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("other", ["a run", "the janitor"])
def test_a_seal_that_outlives_its_lease_is_waited_for_and_its_epoch_is_committed(other: str, new_case: NewCase) -> None:
    """I5, I7, INV-6: it has the epoch's row; whoever takes over reads the state again, and aborts nothing sealed."""
    line = new_case(planned, lock_timeout=60)
    sealing = line.start("pre_commit", ONE, failpoint="seal.transaction:stop,seal.commit:sleep:5").until_stopped()
    line.query(PAST, line.name)
    sealing.go_on()
    wait_for("the seal has the epoch's row", lambda: not line.query(FREE_ROW, line.name))

    since = time.monotonic()
    if other == "a run":
        assert line.take("plan", TWO).said == "nothing_to_read"
    else:
        assert tidied(line).ended == ()
        line.commit(1)

    assert sealing.ended().said == "41"
    assert (line.state(1), line.query("SELECT attempt FROM epochline.epochs WHERE pipeline = %s", line.name)) == (
        EpochState.COMMITTED, [(1,)],
    )  # fmt: skip
    recover(line, since=since)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("ends", ["goes on", "is killed"])
def test_a_seal_that_waits_for_a_recovery_counts_only_if_that_is_rolled_back(ends: str, new_case: NewCase) -> None:
    """I5, INV-4: the run that takes over has the row first, and has not committed the abort."""
    line = new_case(planned, lock_timeout=60)
    sealing = line.stop_at("seal.transaction", "pre_commit", ONE)
    line.query(PAST, line.name)
    taking = line.stop_at("recover.commit.3", "plan", TWO)
    sealing.go_on()
    line.until_a_session_waits_for_a_lock()

    since = time.monotonic()
    if ends == "goes on":
        assert taking.go_on().ended().said == "planned"
        assert sealing.ended().error == "EpochFencedError"
    else:
        taking.kill()
        taking.ended()
        assert sealing.ended().said == "41"
        line.commit(1)
    assert line.run(TWO) == ("success" if ends == "goes on" else "skipped")
    assert line.state(1) is (EpochState.ABORTED if ends == "goes on" else EpochState.COMMITTED)
    recover(line, since=since)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("other", ["a run", "the janitor"])
@pytest.mark.parametrize("place", ["files.seal", "seal.transaction"])
def test_a_seal_of_files_whose_attempt_was_taken_over_leaves_none_of_them(
    place: str, other: str, new_case: NewCase
) -> None:
    """I6, INV-4: its folder is gone; it neither makes it again nor says that files are missing for good."""
    line = new_case(planned, kind="with files")
    sealing = line.stop_at(place, "pre_commit", ONE)
    line.query(PAST, line.name)

    since = time.monotonic()
    if other == "a run":
        assert line.run(TWO) == "success"
    else:
        assert len(tidied(line).ended) == 1

    assert sealing.go_on().ended().error == ("SinkUnavailableError" if place == "files.seal" else "EpochFencedError")
    [folder] = line.pipeline.external
    assert isinstance(folder, Files)
    assert list(Path(folder.path).glob("_epochline/staging/*")) == []
    assert line.take("pre_commit", ONE).error == "EpochStateError"
    recover(line, since=since)


@pytest.mark.fault("F7", "F8")
@pytest.mark.parametrize(
    ("place", "wakes"),
    [
        ("write.copy@2", "before the commit"),
        ("write.copy@2", "after the commit"),
        ("write.part", "before the commit"),
        ("write.commit", "before the commit"),
    ],
)
def test_a_zombie_writer_is_refused_and_recorded(place: str, wakes: str, new_case: NewCase) -> None:
    """I1, I4, I5, INV-4: its session is ended by the fence; what it wrote before and after is gone."""
    line = new_case(planned)
    zombie = line.stop_at(place, "pre_commit", ONE)
    since = time.monotonic()

    assert line.take("pre_commit", ONE).said == "41"
    if wakes == "after the commit":
        assert line.take("commit", ONE).said == "committed"

    assert zombie.go_on().ended().error == "EpochFencedError"
    asked = "SELECT count(*) FROM epochline.fenced_write JOIN epochline.attempt USING (attempt_id) WHERE pipeline = %s"
    assert line.query(asked, line.name) == [(1,)]
    line.commit(1)
    recover(line, since=since)


@pytest.mark.fault("F7")
def test_a_recovery_that_stands_still_is_overtaken_by_the_next_one(new_case: NewCase) -> None:
    """I5, I7: two runs recover one epoch; the first stopped before its COMMIT."""
    line = new_case(left_planned, lock_timeout=LOCK_TIMEOUT)
    zombie = line.stop_at("recover.commit.3", "plan", TWO)

    assert line.run("run-three") == "success"

    assert zombie.go_on().ended().error == "LedgerUnavailableError"
    recover(line)


@pytest.mark.fault("F7")
def test_a_teardown_that_wakes_late_aborts_nothing(new_case: NewCase) -> None:
    """INV-7: the run was cleared, its epoch tried again and committed, while the teardown stood still."""
    line = new_case(staged)
    zombie = line.stop_at("abort.transaction", "abort", ONE)

    since = time.monotonic()
    assert line.run(ONE) == "success"

    assert zombie.go_on().ended().said == "aborted"
    assert line.state(1) is EpochState.COMMITTED
    recover(line, since=since)
