"""A task is killed between any two I/O calls of plan, pre-commit, commit, publish and abort; its retry makes it good."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline.failpoints import KILLED
from tests.checker import recover
from tests.crash.cases import NewCase
from tests.crash.fired import IN_SPARK, WITH_GAPS, WITH_LOSSES, failpoints_of_a_run
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.servers import end_other_sessions

Passed = Callable[[str], Counter[str]]
FirstScenario = Callable[[str], tuple[Scenario, int]]
Kill = Callable[[Scenario, str], None]


@pytest.fixture(scope="module")
def traces() -> dict[str, Counter[str]]:
    return {}


@pytest.fixture
def passed(traces: dict[str, Counter[str]], tmp_path: Path, new_case: NewCase) -> Passed:
    """Runs a scenario to the end, undisturbed and once, and says how often its task passes each failpoint."""

    def trace(name: str) -> Counter[str]:
        if name not in traces:
            scenario, written = SCENARIOS[name], tmp_path / "passed"
            written.write_text("")
            line = new_case(scenario.before, **scenario.of_case)
            line.take(scenario.step, scenario.run, trace=written)
            scenario.after(line)
            recover(line)
            traces[name] = Counter(written.read_text().split())
        return traces[name]

    return trace


@pytest.fixture
def first_scenario(passed: Passed) -> FirstScenario:
    """Gives the first scenario whose task passes a failpoint, and how often."""

    def find(failpoint: str) -> tuple[Scenario, int]:
        for name, scenario in SCENARIOS.items():
            if times := passed(name)[failpoint]:
                return scenario, times
        raise AssertionError(f"no scenario passes {failpoint}: add one to tests/crash/scenarios.py")

    return find


@pytest.fixture
def kill(new_case: NewCase) -> Kill:
    """Kills a scenario's task at a failpoint and lets its retry make it good."""

    def kill_at(scenario: Scenario, failpoint: str) -> None:
        line = new_case(scenario.before, **scenario.of_case)

        ended = line.take(scenario.step, scenario.run, failpoint=f"{failpoint}:exit")

        assert ended.returncode == KILLED, ended.answer
        since = time.monotonic()
        scenario.after(line)
        recover(line, since=since)

    return kill_at


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_in_which_nothing_is_killed_ends_exact(name: str, passed: Passed) -> None:
    """I1, I2, I4, I6: what the other tests find, only their kill can have caused."""
    assert passed(name)


POINTS = [name for name in failpoints_of_a_run() if name not in IN_SPARK | WITH_GAPS | WITH_LOSSES]


@pytest.mark.fault("F1")
@pytest.mark.parametrize("name", POINTS)
def test_a_task_killed_between_any_two_calls_is_made_good_by_its_retry(
    name: str, first_scenario: FirstScenario, kill: Kill, fired: Path
) -> None:
    """I1, I2, I4, I6, I7; INV-3, INV-5, INV-6, INV-7: the first time that it is passed.

    Q3, Q4, X12: at whichever point, the ledger alone says where to go on, and target and ledger end up the same.
    G10: each task has a process and an empty work folder of its own, and leaves nothing there.
    """
    scenario, _ = first_scenario(name)

    kill(scenario, f"{name}@1")

    assert name in fired.read_text().split()


@pytest.mark.slow
@pytest.mark.fault("F1")
def test_a_task_killed_at_the_last_pass_of_a_point_is_made_good_by_its_retry(
    first_scenario: FirstScenario, kill: Kill
) -> None:
    """I1, I2, I4, I6, I7; INV-3, INV-5, INV-6, INV-7: of each point that a task passes more than once."""
    scenarios = {name: first_scenario(name) for name in POINTS}
    again = {name: (scenario, times) for name, (scenario, times) in scenarios.items() if times > 1}
    assert again

    for name, (scenario, times) in again.items():
        kill(scenario, f"{name}@{times}")


@pytest.mark.fault("F1")
@pytest.mark.parametrize(
    "name", ["bounds.targets.measure", "seal.epochs.mark_pre_committed", "seal.commit", "seal.committed"]
)
def test_a_seal_killed_around_its_verdict_leaves_nothing_that_commits_unapproved(name: str, kill: Kill) -> None:
    """I1, I4; INV-6: of an epoch outside its bounds. Only what a person approved is committed, whatever was killed."""
    kill(SCENARIOS["pre-commit outside its bounds"], f"{name}@1")


@pytest.mark.fault("F1")
@pytest.mark.parametrize("name", ["commit.targets.apply", "commit.commit"])
def test_an_approval_outlives_the_commit_that_was_killed(name: str, kill: Kill) -> None:
    """I1, I4; INV-5."""
    kill(SCENARIOS["commit what was approved"], f"{name}@1")


PLACES = {
    "plan": ("intent.epochs.insert", "intent.commit"),
    "recover a left epoch": ("recover.commit.3",),
    "recover a sealed epoch": ("recover.commit.3",),
    "pre-commit again": ("begin.commit", "discard.attempts.drop_staging"),
    "pre-commit": (
        "write.copy", "write.commit", "manifest.commit", "end.commit", "seal.attempts.seal", "seal.commit",
    ),
    "commit": ("commit.chain.advance", "commit.commit"),
    "abort": ("abort.commit",),
    "publish": ("publish.receipts.try_to_show", "publish.commit.3"),
    "publish to a topic": ("topic.record", "topic.commit"),
}  # fmt: skip
"""By scenario, places that it passes inside a transaction of each use case."""

USE_CASES = {name: scenario for scenario, names in PLACES.items() for name in names}


@pytest.mark.fault("F1")
@pytest.mark.parametrize("name", USE_CASES)
def test_an_error_that_nobody_foresaw_is_made_good_by_a_retry(name: str, new_case: NewCase) -> None:
    """INV-2: the transaction is rolled back, and the task fails with that error."""
    scenario = SCENARIOS[USE_CASES[name]]
    line = new_case(scenario.before, **scenario.of_case)

    ended = line.take(scenario.step, scenario.run, failpoint=f"{name}:raise")

    assert ended.error == "FailpointError", ended.answer
    scenario.after(line)
    recover(line)


@pytest.mark.fault("F1", "F12")
@pytest.mark.parametrize("name", USE_CASES)
def test_a_connection_lost_inside_a_transaction_is_made_good(name: str, new_case: NewCase) -> None:
    """I8, INV-5: the task says that a retry helps, or has asked again by itself."""
    scenario = SCENARIOS[USE_CASES[name]]
    line = new_case(scenario.before, **scenario.of_case)
    step = line.stop_at(f"{name}@1", scenario.step, scenario.run)

    end_other_sessions(line.dsn)

    ended = step.go_on().ended()
    assert ended.error is None or (ended.error == "LedgerUnavailableError" and ended.answer["retryable"]), ended.answer
    assert (ended.error is None) == (scenario.step == "commit")
    scenario.after(line)
    recover(line)
