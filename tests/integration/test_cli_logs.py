"""What `epochline logs` says where there is no log to print."""

from pathlib import Path

import pytest

from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator import plan
from epochline.errors import TargetError
from epochline.protocol.epoch import Epoch
from tests.commands import Call
from tests.databases import query
from tests.integration.people import RUN, Patch


@pytest.fixture(autouse=True)
def _no_stack(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "no stack"))


def test_without_airflow_the_command_that_starts_it_is_named(call: Call, planned: Epoch) -> None:
    err = call.refusal("logs", "people")

    assert "no Airflow runs in" in err
    assert "start it with `epochline up`" in err


def test_an_epoch_of_a_command_has_no_task_log_but_a_named_place(call: Call, planned: Epoch, postgres_dsn: str) -> None:
    query(postgres_dsn, "UPDATE epochline.epoch SET dag_id = 'cli'")
    query(postgres_dsn, "UPDATE epochline.attempt SET dag_id = 'cli'")

    err = call.refusal("logs", "people", 1)

    assert "epoch 1 of people was made by a command on somewhere and not by Airflow" in err
    assert "`epochline ledger people --epoch 1`" in err
    assert "spark-cli.log" in err


def test_a_run_that_wrote_no_epoch_is_named_with_its_reason_also_where_no_airflow_has_its_log(
    call: Call, fed: str, postgres_dsn: str
) -> None:
    query(postgres_dsn, "DROP TABLE people")
    declared = discovery.find("people")
    with pytest.raises(TargetError):
        plan(adapters().ledger(declared), adapters().offsets(declared), declared, RUN)

    reason, no_log = call.refusal("logs", "people").splitlines()

    assert reason.startswith("run manual__1 wrote no epoch. people: ")
    assert "target people does not exist" in reason
    assert reason.endswith("To go on, run `epochline migrate`")
    assert no_log.startswith("error: no Airflow runs in ")


def test_what_the_ledger_does_not_know_is_refused(call: Call, fed: str, request: pytest.FixtureRequest) -> None:
    assert "people has no epoch yet; `epochline trigger people` starts a run" in call("logs", "people")[2]
    assert "Did you mean people?" in call("logs", "peple")[2]
    request.getfixturevalue("planned")
    no_epoch = "the ledger has no epoch 9 of people; `epochline ledger people` lists them"
    assert no_epoch in call.refusal("logs", "people", 9)
