"""Which tests run in one process."""

from pathlib import Path

import pytest

from tests.tiers import group, seconds_for


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("airflow/test_epochs.py", "airflow"),
        ("crash/test_f1_every_failpoint.py", "failpoints"),
        ("crash/test_failpoints_fired.py", "failpoints"),
        ("crash/test_promises_under_kills.py", "crash of brokers"),
        ("crash/test_f11_f12_commit_answer.py", "crash"),
        ("integration/spark/test_spark_state.py", "spark"),
        ("integration/test_stack.py", "stacks"),
        ("e2e/test_tutorial.py", "stacks"),
        ("integration/test_audit.py", "integration/test_audit.py"),
    ],
)
def test_tests_share_a_process_with_those_that_need_the_same_servers(path: str, named: str) -> None:
    assert group(path) == named


def test_a_test_of_a_pipelines_author_next_to_the_folders_has_a_time_out() -> None:
    assert seconds_for(Path("test_orders.py")) == seconds_for(Path("unit/test_tiers.py")) == 300
