"""Which failpoints the suite made act, and the last word on it: every one must have, once the whole folder ran."""

import re
from pathlib import Path

import pytest

from epochline.failpoints import USE_CASES, known_failpoints, named_by_hand

FOLDER = Path(__file__).parent
LAST = "test_every_failpoint_fired"

TASKS = ("plan", "begin", "seal", "commit", "publish", "abort")
"""The use cases that a run's tasks call. Commands of an operator are answered to a person, who sees what came of them.
A look for records that wait writes nothing: `tests.airflow.test_waking` kills the process that looks."""

IN_SPARK = frozenset({"job.stage"})
"""Passed by the driver of a Spark job alone: `tests.crash.test_f02_spark_failpoints` kills it there."""

WITH_GAPS = frozenset({"seal.source.gaps", "seal.chain.declared_gaps"})
"""Passed where offsets gave no record and nothing explains them: `tests.crash.test_f46_f47_logs` makes them fail."""

WITH_LOSSES = frozenset({"observe.source.confirm"})
"""Passed where Kafka shows less than was read: `tests.crash.test_f46_f47_logs` makes it fail."""

_WHOLE = ("", "not long", "not slow and not long")
"""What those choose by that run the whole folder, as `make test-all` does."""


def use_cases_of_a_run() -> set[str]:
    """The modules that the tasks' use cases consist of: themselves, and what they import of their own kind."""
    found: set[str] = set()
    new = set(TASKS)
    while new:
        found |= new
        texts = [(USE_CASES / f"{name}.py").read_text() for name in new]
        new = set(re.findall(r"^from epochline\.coordinator\.(\w+) import", "\n".join(texts), re.MULTILINE)) - found
    return found


def failpoints_of_a_run() -> list[str]:
    """The failpoints that must act: those of the tasks' use cases, of the job and its writers, and of the sinks."""
    by_tasks = use_cases_of_a_run()
    used = {name for name in known_failpoints() if name.partition(".")[0] in by_tasks}
    return sorted(used | set(named_by_hand()))


@pytest.fixture(scope="session")
def fired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for EPOCHLINE_FAILPOINT_RECORD of every process that a test of this folder makes fail."""
    path = tmp_path_factory.mktemp("failpoints") / "fired"
    path.touch()
    return path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the last test last, or take it out where only a part of the folder is to run: then it could only lie."""
    last = [item for item in items if item.name == LAST]
    if not last:
        return
    items[:] = [item for item in items if item.name != LAST]
    files = {item.path for item in items if item.path.parent == FOLDER}
    whole = files >= set(FOLDER.glob("test_*.py")) - {last[0].path}
    chosen = any("::" in one for one in config.args) or config.option.keyword or config.getoption("lf", default=False)
    if whole and not chosen and config.option.markexpr in _WHOLE:
        items.extend(last)
    else:
        config.hook.pytest_deselected(items=last)
