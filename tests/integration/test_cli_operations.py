"""What operators do at a terminal, against a real ledger and a real Kafka."""

import json
from pathlib import Path

from typer.testing import CliRunner

from epochline import cli
from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator.evidence import mirror
from epochline.operations import ACTIONS
from epochline.protocol.epoch import Epoch
from tests.commands import Call
from tests.databases import query
from tests.integration.kafka_topics import Topic, delete_records


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
    paused = json.loads(call("pause", "people", "--reason", "the target is being moved", "--yes", "--json")[1])
    code, _, err = call("plan", "people")

    assert (paused["action"], paused["before"], paused["after"]) == ("pause", {"paused": False}, {"paused": True})
    assert "@" in paused["actor"]
    assert code == 1
    assert f"is paused by {paused['actor']}" in err
    assert err.endswith("To go on, run `epochline resume people --reason …`\n")
    assert call("resume", "people", "--reason", "it was moved", "--yes")[0] == 0
    assert call("plan", "people")[0] == 0
    code, out, _ = call("actions", "people")
    assert code == 0
    assert "the target is being moved" in out
    assert [one["action"] for one in json.loads(call("actions", "people", "--json")[1])] == ["pause", "resume"]


def test_what_retention_took_is_declared_lost_and_nothing_else(
    call: Call, planned: Epoch, fed: str, kafka_bootstrap: str, postgres_dsn: str
) -> None:
    """I11, on a log that a real broker cut."""
    call("abort", "people", 1, "--reason", "to see what is lost", "--yes")
    refused = call("declare-loss", "people", "--reason", "is it?", "--yes")
    delete_records(kafka_bootstrap, fed, {0: 20})
    stopped = call("plan", "people")

    code, out, _ = call("declare-loss", "people", "--reason", "retention was too short", "--yes")

    assert refused[0] == 1
    assert "nothing is lost" in refused[2]
    assert stopped[0] == 1
    assert "epochline declare-loss people" in stopped[2]
    assert code == 0
    assert f"{fed}-0: offsets [0, 20), 20 of them, are declared lost" in out
    shown = json.loads(call("plan", "people", "--json")[1])
    assert [one["head"] for one in shown["partitions"]] == [20, 0]
    assert query(
        postgres_dsn,
        "SELECT start_offset, until_offset FROM epochline.committed_ranges WHERE chosen_by = 'declared loss'",
    ) == [(0, 20)]


def test_a_topic_that_was_made_again_is_adopted(
    call: Call, planned: Epoch, fed: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """I11, with a topic that a real broker deleted and made again."""
    call("abort", "people", 1, "--reason", "its topic is to be deleted", "--yes")
    Topic(kafka_bootstrap, fed).make_again(2)
    source = tmp_path / "again.jsonl"
    source.write_text('{"id": 7}\n{"id": 8}\n')
    assert call("feed", source, "--topic", fed)[0] == 0
    stopped = call("plan", "people")

    code, out, _ = call("adopt-topic", "people", fed, "--reason", "it was made again with fewer days", "--yes")

    assert stopped[0] == 1
    assert f"epochline adopt-topic people {fed}" in stopped[2]
    assert code == 0
    assert "generation 2 of people begins" in out
    assert "would read 2 offsets and leave 0" in call("plan", "people")[1]


def test_a_dropped_pipeline_leaves_its_tables_and_takes_its_group_with_it(
    call: Call, planned: Epoch, postgres_dsn: str
) -> None:
    declared = discovery.find("people")
    mirror(adapters().ledger(declared), adapters().offsets(declared), declared)
    assert adapters().offsets(declared).mirrored(declared.consumer_group)
    reason = ("--reason", "nobody reads it", "--yes")
    unfinished = call("drop", "people", *reason)
    call("abort", "people", 1, *reason)

    code, out, _ = call("drop", "people", *reason)

    assert unfinished[0] == 1
    assert "epoch 1 of people is PLANNED" in unfinished[2]
    assert code == 0
    assert "consumer group epochline.people is gone" in out
    assert adapters().offsets(declared).mirrored(declared.consumer_group) == {}
    assert "was dropped by" in call("plan", "people")[2]
    assert query(postgres_dsn, "SELECT count(*) FROM people") == [(0,)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.target") == [(0,)]


def test_a_pipeline_that_is_declared_no_more_is_still_paused_and_dropped(
    call: Call, planned: Epoch, tmp_path: Path
) -> None:
    (tmp_path / "people.py").unlink()
    reason = ("--reason", "its file is gone", "--yes")

    assert call("pause", "people", *reason)[0] == 0
    code, _, err = call("declare-loss", "people", *reason)
    assert code == 1
    assert "no DAG file declares the pipeline" in err
    assert call("abort", "people", 1, *reason)[0] == 0
    assert "was left in Kafka" in call("drop", "people", *reason)[1]
