"""What operators do at a terminal, against a real ledger and a real Kafka."""

import json

import pytest

from epochline.kafka.source import KafkaOffsets
from epochline.operations import ACTIONS
from tests.databases import query
from tests.integration.kafka_topics import Topic, delete_records


@pytest.fixture(autouse=True)
def _no_mirror_of_another_test(kafka_bootstrap):
    """Each test has a ledger of its own, but they share a broker, which remembers the group."""
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.people")


def test_every_action_is_a_command():
    from typer.testing import CliRunner

    from epochline import cli

    for name in ACTIONS:
        shown = CliRunner().invoke(cli.app, [name, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert "--reason" in shown.output
        assert "[required]" in shown.output


def test_an_action_without_a_reason_is_wrong_use(call, planned):
    assert call("pause", "people", "--yes")[0] == 2
    code, _, err = call("pause", "people", "--reason", "  ", "--yes")
    assert code == 2
    assert "say why" in err


def test_an_action_that_cannot_be_told_this_says_what_it_takes(call, planned):
    code, _, err = call("extend-back", "people", "yesterday", "--reason", "why not", "--yes")

    assert code == 1
    assert "extend-back: invalid parameters: to: give earliest, an offset or a time in ISO 8601" in err


def test_a_paused_pipeline_is_not_run_and_the_ledger_tells_who_paused_it(call, fed, planned):
    paused = json.loads(call("pause", "people", "--reason", "the target is being moved", "--yes", "--json")[1])
    code, _, err = call("plan", "people")

    assert (paused["action"], paused["before"], paused["after"]) == ("pause", {"paused": False}, {"paused": True})
    assert "@" in paused["actor"]
    assert code == 1
    assert f"is paused by {paused['actor']}" in err
    assert call("resume", "people", "--reason", "it was moved", "--yes")[0] == 0
    assert call("plan", "people")[0] == 0
    code, out, _ = call("actions", "people")
    assert code == 0
    assert "the target is being moved" in out
    assert [one["action"] for one in json.loads(call("actions", "people", "--json")[1])] == ["pause", "resume"]


def test_what_retention_took_is_declared_lost_and_nothing_else(call, planned, fed, kafka_bootstrap, postgres_dsn):
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


def test_a_topic_that_was_made_again_is_adopted(call, planned, fed, kafka_bootstrap, tmp_path):
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


def test_a_dropped_pipeline_leaves_its_tables_and_takes_its_group_with_it(call, planned, kafka_bootstrap, postgres_dsn):
    from epochline.cli.connections import ledger_of, offsets_of
    from epochline.config import discovery
    from epochline.coordinator.commit import mirror

    declared = discovery.find("people")
    mirror(ledger_of(declared), offsets_of(declared), "people")
    assert offsets_of(declared).mirrored(declared.consumer_group)
    unfinished = call("drop", "people", "--reason", "nobody reads it", "--yes")
    call("abort", "people", 1, "--reason", "nobody reads it", "--yes")

    code, out, _ = call("drop", "people", "--reason", "nobody reads it", "--yes")

    assert unfinished[0] == 1
    assert "epoch 1 of people is PLANNED" in unfinished[2]
    assert code == 0
    assert "consumer group epochline.people is gone" in out
    assert offsets_of(declared).mirrored(declared.consumer_group) == {}
    assert "was dropped by" in call("plan", "people")[2]
    assert query(postgres_dsn, "SELECT count(*) FROM people") == [(0,)]
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.target") == [(0,)]


def test_a_pipeline_that_is_declared_no_more_is_still_paused_and_dropped(call, planned, tmp_path):
    (tmp_path / "people.py").unlink()

    assert call("pause", "people", "--reason", "its file is gone", "--yes")[0] == 0
    code, _, err = call("declare-loss", "people", "--reason", "perhaps", "--yes")
    assert code == 1
    assert "no DAG file declares the pipeline" in err
    assert call("abort", "people", 1, "--reason", "its file is gone", "--yes")[0] == 0
    assert "was left in Kafka" in call("drop", "people", "--reason", "its file is gone", "--yes")[1]


@pytest.mark.parametrize("command", ["pause", "drop"])
def test_a_pipeline_that_the_ledger_has_never_seen_is_named(call, command):
    code, _, err = call(command, "nobody", "--reason", "why not", "--yes")

    assert code == 1
    assert "knows no pipeline 'nobody'" in err
