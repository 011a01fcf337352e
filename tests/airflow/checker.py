"""What must hold of a pipeline of the scheduler, checked on its targets and its ledger."""

from __future__ import annotations

from epochline.config.discovery import find
from tests.airflow.conftest import Scheduler, Values
from tests.conftest import AIRFLOW_DAGS
from tests.crash.checker import assert_chain, assert_counts


def assert_exact(scheduler: Scheduler, pipeline: str, values: Values) -> None:
    """Both targets hold each record once; chain and counts are whole; nothing is left over (G3, INV-1, I1, I2, I4, I6)."""
    produced = sorted((value, partition) for partition, some in values.items() for value in some)
    for table in (pipeline, f"{pipeline}_again"):
        assert sorted(scheduler.query(f"SELECT value, _partition FROM {table}")) == produced
    assert scheduler.heads(pipeline) == {p: len(some) for p, some in values.items()}
    assert scheduler.group_offsets(pipeline) == scheduler.heads(pipeline)
    assert scheduler.staging_tables(pipeline) == []
    judged = IntervalReport(scheduler, pipeline)
    assert_chain(judged)
    assert_counts(judged)


class IntervalReport:
    """A pipeline of the scheduler, for the checks of the crash suite."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self.pipeline = find(name, AIRFLOW_DAGS)
        self.query = scheduler.query


def committed(scheduler: Scheduler, pipeline: str) -> int:
    asked = "SELECT count(*) FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED'"
    return scheduler.count(asked, pipeline)
