"""Ports: defaults where free, others where not, kept, and never taken from a running part."""

import socket
from collections.abc import Iterator

import pytest

from epochline.errors import StackError
from epochline.local.home import DEFAULTS, Home, Ports, holder, is_free


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.local.home.becomes_free", is_free)


def test_a_port_in_use_is_not_free_and_its_holder_is_named(listener: int) -> None:
    assert not is_free(listener)
    assert "pid" in holder(listener)


def test_a_taken_default_is_replaced_by_a_free_port(home: Home, listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.local.home.DEFAULTS", {**DEFAULTS, "postgres": listener})

    chosen = Ports(home).settle(set())

    assert chosen["postgres"] != listener
    assert is_free(chosen["postgres"])
    assert len(set(chosen.values())) == len(DEFAULTS)


def test_a_lost_port_is_replaced_unless_its_server_runs_or_airflow_relies_on_it(home: Home) -> None:
    first = Ports(home).settle(set())
    with socket.create_server(("127.0.0.1", first["kafka"])):
        assert Ports(home).settle({"kafka"}) == first
        with pytest.raises(StackError, match=f"port {first['kafka']} of kafka is now used by"):
            Ports(home).settle({"airflow"})
        second = Ports(home).settle({"postgres"})

    assert second["kafka"] != first["kafka"]
    assert second == first | {"kafka": second["kafka"]}
    with socket.create_server(("127.0.0.1", second["kafka"])):
        third = Ports(home).settle(set())
    assert third["kafka"] != second["kafka"]
    assert third == first | {"kafka": third["kafka"]}


def test_a_stack_that_was_never_started_has_no_ports(home: Home) -> None:
    with pytest.raises(StackError, match="epochline up"):
        Ports(home).get("postgres")


def test_a_damaged_file_is_reported(home: Home) -> None:
    home.ports.write_text("{")

    with pytest.raises(StackError, match="delete it"):
        Ports(home).known()
