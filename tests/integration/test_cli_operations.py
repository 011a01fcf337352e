"""What operators do at a terminal, against a real ledger and a real Kafka."""

import io
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochline import cli
from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator.mirror import mirror
from epochline.errors import StalePreviewError
from epochline.operations import ACTIONS, EpochAction, Request, Subject
from epochline.protocol.epoch import Epoch
from tests.commands import Call
from tests.databases import query
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import produce
from tests.integration.people import RUN, declare
from tests.integration.sinks_world import in_process


def test_every_action_is_a_command() -> None:
    for name in ACTIONS:
        shown = CliRunner().invoke(cli.app, [name, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert "--reason" in shown.output
        assert "[required]" in shown.output


def test_a_wrong_use_of_an_action_says_what_is_wrong(call: Call, planned: Epoch) -> None:
    for action, pipeline, more, code, said in (
        ("pause", "people", (), 2, "--reason"),
        ("pause", "people", ("--reason", "  "), 2, "say why"),
        ("extend-back", "people", ("yesterday", "--reason", "why not"), 1,
         "extend-back: invalid parameters: to: give earliest, an offset or a time in ISO 8601"),
        ("pause", "nobody", ("--reason", "why not"), 1, "knows no pipeline 'nobody'"),
        ("drop", "nobody", ("--reason", "why not"), 1, "knows no pipeline 'nobody'"),
    ):  # fmt: skip
        found, _, err = call(action, pipeline, *more, "--yes")

        assert (found, said in err) == (code, True), err


def test_a_paused_pipeline_is_not_run_and_the_ledger_says_who_paused_it(call: Call, planned: Epoch) -> None:
    paused = call.json("pause", "people", "--reason", "the target is being moved", "--yes")
    err = call.refusal("plan", "people")

    assert (paused["action"], paused["before"], paused["after"]) == ("pause", {"paused": False}, {"paused": True})
    assert "@" in paused["actor"]
    assert f"is paused by {paused['actor']}" in err
    assert err.endswith("To go on, run `epochline resume people --reason …`\n")
    call.shown("resume", "people", "--reason", "it was moved", "--yes")
    call.shown("plan", "people")
    assert "the target is being moved" in call.shown("actions", "people")
    assert [one["action"] for one in call.json("actions", "people")] == ["pause", "resume"]


def test_a_dropped_pipeline_leaves_its_tables_and_no_group(call: Call, planned: Epoch, postgres_dsn: str) -> None:
    declared = discovery.find("people")
    mirror(adapters().ledger(declared), adapters().offsets(declared), declared)
    assert adapters().offsets(declared).mirrored(declared.consumer_group)
    reason = ("--reason", "nobody reads it", "--yes")
    code, _, err = call("drop", "people", *reason)
    assert (code, "epoch 1 of people is PLANNED" in err) == (1, True), err
    call("abort", "people", 1, *reason)

    out = call.shown("drop", "people", *reason)

    assert "consumer group epochline.people is gone" in out
    assert adapters().offsets(declared).mirrored(declared.consumer_group) == {}
    assert "was dropped by" in call("plan", "people")[2]
    assert query(postgres_dsn, "SELECT count(*) FROM people") == [(0,)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.target") == [(0,)]


def test_a_pipeline_without_its_file_is_still_paused_and_dropped(call: Call, planned: Epoch, tmp_path: Path) -> None:
    (tmp_path / "people.py").unlink()
    reason = ("--reason", "its file is gone", "--yes")

    call.shown("pause", "people", *reason)
    assert "no DAG file declares the pipeline" in call.refusal("declare-loss", "people", *reason)
    call.shown("abort", "people", 1, *reason)
    assert "was left in Kafka" in call.shown("drop", "people", *reason)


@pytest.fixture
def committed(fed: str, postgres_dsn: str, kafka_bootstrap: str) -> InProcess:
    """A pipeline with one committed epoch, of 100 records, and 50 more to come."""
    people = in_process(postgres_dsn, kafka_bootstrap, discovery.find("people"))
    people.epoch()
    return people


def test_a_savepoint_is_made_listed_restored_and_deleted(call: Call, committed: InProcess) -> None:
    """C12, C13."""
    one = ("people", "before-the-upgrade", "--reason", "version 2", "--yes")

    call.shown("savepoint", *one)
    committed.epoch()
    assert committed.sql("SELECT count(*) FROM people") == [(150,)]
    out = call.shown("savepoints", "people")
    assert ("before-the-upgrade" in out, "version 2" in out) == (True, True)
    call.shown("restore", *one)
    assert committed.sql("SELECT count(*) FROM people") == [(100,)]
    committed.epoch()
    assert committed.sql("SELECT count(*), count(DISTINCT id) FROM people") == [(150, 150)]
    call.shown("delete-savepoint", *one)
    assert call.json("savepoints", "people") == []
    assert "has no savepoint" in call.shown("savepoints", "people")


class Deliberating(io.TextIOBase):
    """A terminal at which somebody says yes after something else has happened."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override] # bytes in its base class
        self._meanwhile()
        return "y\n"


def test_a_restore_undoes_no_epoch_that_its_preview_did_not_show(
    call: Call, committed: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: an epoch that is committed while the operator reads the preview stays; a repeat shows it."""
    one = ("people", "one", "--reason", "version 2")
    call.shown("savepoint", *one, "--yes")
    monkeypatch.setattr(sys, "stdin", Deliberating(committed.epoch))

    code, out, err = call("restore", *one)

    assert (code, "undone" in out) == (1, False), out + err
    assert "restore would do something else by now than its preview says" in err
    assert committed.sql("SELECT count(*) FROM people") == [(150,)]
    monkeypatch.setattr(sys, "stdin", Deliberating(lambda: None))
    assert "undone: epoch 2" in call.shown("restore", *one)
    assert committed.sql("SELECT count(*) FROM people") == [(100,)]


def test_a_sealed_epoch_is_not_aborted_by_who_saw_it_staging(
    call: Call, fed: str, postgres_dsn: str, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = in_process(postgres_dsn, kafka_bootstrap, discovery.find("people"))
    planned, run = people.planned()
    monkeypatch.setattr(sys, "stdin", Deliberating(lambda: people.staged_and_sealed(planned, run)))

    code, out, err = call("abort", "people", 1, "--reason", "it takes long")

    assert (code, "epoch 1 of people is PLANNED" in out) == (1, True), out + err
    assert "abort would do something else by now than its preview says" in err
    assert people.commit(planned).rows == {"people": 100}


def test_a_savepoint_is_written_to_a_file_once_and_read_back(call: Call, committed: InProcess, tmp_path: Path) -> None:
    """C11: only the owner can read the file, no export overwrites it, and its savepoint cannot be imported twice."""
    file = tmp_path / "one.zip"
    call("savepoint", "people", "one", "--reason", "to carry it", "--yes")

    out = call.shown("savepoint-export", "people", "one", file)

    assert ("epoch 1" in out, file.stat().st_mode & 0o077) == (True, 0)
    assert "cannot be written: File exists" in call("savepoint-export", "people", "one", file)[2]
    assert "has no savepoint two" in call("savepoint-export", "people", "two", tmp_path / "two.zip")[2]
    assert not (tmp_path / "two.zip").exists()
    assert "is here already" in call("savepoint-import", file)[2]
    call("delete-savepoint", "people", "one", "--reason", "it is in the file", "--yes")
    assert "epochline restore NEW one --of people" in call.shown("savepoint-import", file)
    assert "came from a file" in call.refusal("restore", "people", "one", "--reason", "why not", "--yes")


@pytest.fixture
def set_aside(call: Call, people_topic: str, kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path) -> str:
    """The topic of two epochs: the first set aside offsets 1 and 2 of partition 0, the second offset 3."""
    declare(tmp_path, people_topic, more='bad_records="quarantine"')
    call("migrate")
    line = in_process(postgres_dsn, kafka_bootstrap, discovery.find("people"))
    produce(kafka_bootstrap, people_topic, [b'{"id": 1}', b'{"id": "x"}'], partition=0)
    produce(
        kafka_bootstrap, people_topic, [b"\xffno\nJSON" + bytes(range(40))], partition=0, key=b"k\x00",
        headers=[("trace", b"4711"), ("empty", b"")],
    )  # fmt: skip
    line.epoch()
    produce(kafka_bootstrap, people_topic, [b"no person"], partition=0)
    line.epoch()
    return people_topic


def test_a_requeue_reads_no_record_that_its_preview_did_not_count(
    call: Call, set_aside: str, postgres_dsn: str, kafka_bootstrap: str
) -> None:
    declared = discovery.find("people")
    action, subject = ACTIONS["requeue"], Subject(
        name="people", ledger=adapters().ledger(declared), declared=declared, source=adapters().offsets(declared)
    )  # fmt: skip
    assert isinstance(action, EpochAction)
    everything = action.parse({"everything": True})
    confirmed = action.preview(subject, everything)
    produce(kafka_bootstrap, set_aside, [b"another one"], partition=1)
    replace(in_process(postgres_dsn, kafka_bootstrap, declared), run_prefix="later").epoch()

    with pytest.raises(StalePreviewError, match="requeue would do something else"):
        action.plan(subject, everything, Request(actor="ada", reason="mended"), RUN, confirmed=confirmed)

    assert query(postgres_dsn, "SELECT max(epoch_id) FROM epochline.epochs") == [(3,)]


def test_records_are_listed_the_newest_first_with_the_command_that_goes_on(call: Call, set_aside: str) -> None:
    """F28: each with its offset and reason."""
    out, listed = call.shown("quarantine", "people"), call.json("quarantine", "people")

    assert [(one["epoch_id"], one["topic"], one["offset"]) for one in listed] == [
        (2, set_aside, 3), (1, set_aside, 2), (1, set_aside, 1)
    ]  # fmt: skip
    assert listed[2]["value"] == "\\x" + b'{"id": "x"}'.hex()
    heading, newest, second, *_ = out.splitlines()
    assert heading.split() == ["epoch", "record", "time", "reason", "key", "value", "requeued", "by"]
    assert newest.startswith(f"    2  {set_aside}/0/3")
    assert "no person" in newest
    assert "k\\x00" in second
    assert r"\xffno\nJSON\x00\x01" in second
    assert "… (48 bytes)" in second
    assert out.endswith(
        "3 records not requeued yet. Correct the parse, and then run:\n"
        "epochline requeue people --everything --reason …\n"
    )


def test_the_list_is_narrowed_and_the_command_names_the_same_records(call: Call, set_aside: str) -> None:
    by_epoch = call("quarantine", "people", "--epoch", 1, "--limit", 1)[1]
    by_reason = call("quarantine", "people", "--reason", "%fit bigint%")[1]

    assert len(by_epoch.splitlines()) == 4
    assert "2 records not requeued yet" in by_epoch
    assert by_epoch.endswith("epochline requeue people --epoch 1 --reason …\n")
    assert f"{set_aside}/0/1" in by_reason
    assert by_reason.endswith("epochline requeue people --like '%fit bigint%' --reason …\n")
    told = shlex.split(by_reason.splitlines()[-1].replace("…", "mended"))
    assert f"{set_aside}-0: 1 quarantined records are read again" in call(*told[1:])[1]
    nothing = "no record in the quarantine of people matches\n"
    assert call("quarantine", "people", "--epoch", 9) == (0, nothing, "")


def test_one_record_is_shown_with_its_bytes_and_headers(call: Call, set_aside: str) -> None:
    out = call.shown("quarantine", "people", "--show", f"{set_aside}/0/2")

    lines = out.splitlines()
    assert lines[0] == f"{set_aside}/0/2 of epoch 1, generation 1"
    assert "header trace: 4711" in lines
    assert "header empty: " in lines
    assert "key, 2 bytes: k\\x00" in lines
    assert "  00000000  6b 00                                            k." in lines
    assert r"value, 48 bytes: \xffno\nJSON\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n" in out
    assert "  00000000  ff 6e 6f 0a 4a 53 4f 4e 00 01 02 03 04 05 06 07  .no.JSON........" in lines
    assert lines[-1] == f"epochline requeue people --topic {set_aside} --partition 0 --offset 2 --reason …"


def test_a_requeued_record_names_its_epoch_and_no_command(call: Call, set_aside: str, postgres_dsn: str) -> None:
    query(postgres_dsn, "UPDATE epochline.quarantined_record SET requeued_by = 2, requeued_at = now()")

    shown = call("quarantine", "people", "--show", f"{set_aside}/0/1")[1]
    listed = call("quarantine", "people")[1]

    assert "requeued by epoch 2 at 20" in shown
    assert "epochline requeue" not in shown + listed


def test_an_unknown_pipeline_or_record_is_refused(call: Call, set_aside: str) -> None:
    err = call.refusal("quarantine", "people", "--show", f"{set_aside}/1/7")

    assert f"the quarantine of people has no record {set_aside}/1/7; `epochline quarantine people` lists" in err
    assert "Did you mean people?" in call.refusal("quarantine", "peple")
    assert call("quarantine", "people", "--show", "17")[0] == 2
