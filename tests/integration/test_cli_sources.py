"""The commands on a pipeline that reads a source of a user's own, with a real ledger and no Kafka at all."""

import itertools
import json
from pathlib import Path

import pytest

from epochline import CustomSource
from epochline.cli import connections
from epochline.config import discovery
from epochline.config.resolve import file_settings, resolve_settings
from epochline.protocol.staging import StagingTicket
from tests.commands import Call, connect_to
from tests.databases import query
from tests.integration.in_process import InProcess, from_source
from tests.integration.people import Patch

_runs = itertools.count(1)

DECLARED = """
from epochline import CustomSource, Pipeline, PostgresTable, Text, epoch_dag

pipeline = Pipeline(
    name="numbers",
    source=CustomSource(
        source="epochline.sources.counter:Counter",
        options={"began": "2026-01-01T00:00:00Z", "numbers": 10},
        label="numbers",
        records_per_epoch=6,
    ),
    parse=Text(),
    sinks=PostgresTable(table="numbers", columns={"value": "text"}),
)
dag = epoch_dag(pipeline)
"""


@pytest.fixture
def call(on_ledger: Call, tmp_path: Path, monkeypatch: Patch) -> Call:
    connect_to(monkeypatch, kafka="127.0.0.1:1")
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    (tmp_path / "numbers.py").write_text(DECLARED)
    on_ledger.shown("migrate")
    return on_ledger


def one_epoch(dsn: str) -> None:
    """Of the declared pipeline, by its own offsets and its own source, and with the settings of the settings file."""
    declared = discovery.find("numbers")
    assert isinstance(declared.source, CustomSource)
    read = from_source(declared.source)
    process = InProcess(dsn, declared, connections.adapters().offsets(declared), read, run_prefix=f"run-{next(_runs)}")
    process.epoch(settings=resolve_settings(declared, file=file_settings()))


def test_the_commands_that_show_a_pipeline_need_no_kafka(call: Call, postgres_dsn: str) -> None:
    """N2."""
    assert "[0, 6)" in call.shown("plan", "numbers")
    rows = call.json("preview", "numbers", "--records", 2)["rows"]
    assert [row["values"] for row in rows] == [{"value": "1"}, {"value": "2"}]

    one_epoch(postgres_dsn)

    assert query(postgres_dsn, "SELECT count(*) FROM numbers") == [(6,)]
    (partition,) = call.json("lag", "numbers")
    assert (partition["topic"], partition["head"], partition["lag"]) == ("numbers", 6, 4)
    for command in (("list",), ("validate",), ("ledger", "numbers")):
        call.shown(*command)


def test_a_job_of_the_pipeline_is_given_no_connection_of_kafka(call: Call, postgres_dsn: str) -> None:
    declared = discovery.find("numbers")
    ticket = StagingTicket(
        pipeline="numbers", epoch_id=1, attempt=1, attempt_id=1, application_name="epochline:1", tables=()
    )  # fmt: skip

    assert connections.adapters().job_credentials(declared, ticket).kafka == {}


def test_an_audit_reads_the_source_again_and_names_the_record_without_a_row(call: Call, postgres_dsn: str) -> None:
    one_epoch(postgres_dsn)

    assert "numbers: 1 epoch, 6 records read again: no difference" in call.shown("audit", "numbers")

    query(postgres_dsn, "DELETE FROM numbers WHERE value = '4'")
    code, out, err = call("audit", "numbers")
    assert (code, "numbers: missing: numbers-0 offset 3 (epoch 1)" in out) == (1, True), out + err


def test_the_files_of_epochs_are_listed_and_shown_and_a_missing_one_is_named(
    call: Call, postgres_dsn: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """C11."""
    assert "numbers has no setting epoch_files" in call.refusal("epoch-files", "numbers")
    monkeypatch.setenv("EPOCHLINE_SETTINGS", str(tmp_path / "settings.toml"))
    (tmp_path / "settings.toml").write_text(f'[settings]\nepoch_files = "{tmp_path}/files"\n')
    assert "no epoch of numbers was committed yet" in call("epoch-files", "numbers")[1]

    one_epoch(postgres_dsn)
    one_epoch(postgres_dsn)

    listed = call.json("epoch-files", "numbers")
    first, second = (one["file"] for one in listed)
    assert [one["epoch"] for one in listed] == [1, 2]
    assert Path(second).stat().st_size == listed[1]["bytes"]
    described = json.loads(call.shown("epoch-files", "numbers", "--show", 2))
    assert described["ranges"] == [{"topic": "numbers", "partition": 0, "start": 6, "until": 10}]
    Path(first).unlink()
    assert [one["file"] for one in call.json("epoch-files", "numbers")] == ["missing", second]
    assert "epoch 1 of numbers has no file" in call.refusal("epoch-files", "numbers", "--show", 1)
    Path(second).write_text("damaged")
    assert "the file is no savepoint" in call("epoch-files", "numbers", "--show", 2)[2]
