"""The real Spark job killed at failpoints: its driver for good, its Python worker once."""

from pathlib import Path

import pytest

from epochline.coordinator import seal
from epochline.failpoints import KILLED, NAMED, RECORD
from tests.checker import recover
from tests.crash.cases import NewCase
from tests.crash.scenarios import ONE, pre_commit_and_commit
from tests.crash.spark_job import LOCAL, SERVER, job, log_of


@pytest.mark.fault("F2")
@pytest.mark.parametrize("master", [LOCAL, SERVER])
@pytest.mark.parametrize("name", ["job.stage", "manifest.begin"], ids=["before it writes", "before the manifest"])
def test_a_driver_killed_at_a_failpoint_is_made_good_by_the_next_attempt(
    name: str, master: str, new_case: NewCase, spark_server: str, fired: Path, tmp_path: Path
) -> None:
    """I1, I6: partial staging never commits; a driver that is dead writes no manifest and no end mark."""
    line = new_case()
    _, ticket = line.to_begun(ONE)

    failing = {NAMED: f"{name}:exit", RECORD: str(fired)}
    with job(line, ticket, tmp_path, master, server=spark_server, **failing) as running:
        assert running.wait(240) == KILLED, log_of(tmp_path)

    line.recovery.last_fault()
    pre_commit_and_commit(line)
    recover(line)
    line.recovery.took()
    assert line.query("SELECT attempt FROM epochline.epochs WHERE pipeline = %s", line.name) == [(2,)]


@pytest.mark.fault("F3")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["write.copy", "write.commit", "write.committed"])
def test_a_worker_killed_at_a_failpoint_is_made_good_by_sparks_own_retry(
    name: str, new_case: NewCase, tmp_path: Path
) -> None:
    """I1, I4: the task runs again in the same attempt; what was committed already is not written twice."""
    line = new_case()
    _, ticket = line.to_begun(ONE)
    record = tmp_path / "fired"

    with job(line, ticket, tmp_path, LOCAL, **{NAMED: f"{name}:exit:once", RECORD: str(record)}) as running:
        assert running.wait(240) == 0, log_of(tmp_path)

    assert record.read_text().split() == [name]
    assert seal(line.ledger, line.source, ticket, line.run_of(ONE)).read == len(line.produced)
    line.commit(1)
    recover(line)
