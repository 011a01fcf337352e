"""`epochline list` on a real ledger, with Kafka and without."""

import json

import pytest

from epochline.protocol.epoch import Epoch
from tests.commands import Call


def test_a_pipeline_is_listed_with_state_and_lag(call: Call, fed: str) -> None:
    code, out, _ = call("list", "--json")

    (row,) = json.loads(out)
    assert code == 0
    assert (row["pipeline"], row["state"], row["lag"], row["last_commit"]) == ("people", "not started", 150, None)


def test_an_unfinished_epoch_and_a_pause_are_states(call: Call, planned: Epoch) -> None:
    assert json.loads(call("list", "--json")[1])[0]["state"] == "staging"

    call("pause", "people", "--reason", "the disk is full", "--yes")
    (row,) = json.loads(call("list", "--json")[1])

    assert row["state"] == "paused"
    assert "the disk is full" in row["reason"]


def test_the_lag_is_unknown_while_kafka_is_away(call: Call, fed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_EPOCHLINE_KAFKA", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}'
    )

    code, out, err = call("list")
    planned = call("plan", "people")

    assert (code, err) == (0, "")
    assert "unknown" in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert planned[0] == 1
    assert len(planned[2].splitlines()) == 1, "a client library logged to the terminal, or a cause was said twice"
