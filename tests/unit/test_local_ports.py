"""Ports: defaults where free, others where not, kept, and never taken from a running part."""

import socket
import stat
from collections.abc import Iterator

import pytest

from epochline.errors import StackError
from epochline.local import ports as ports_module
from epochline.local.ports import DEFAULTS, Ports, holder, is_free


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(ports_module, "becomes_free", is_free)


def test_a_port_in_use_is_not_free_and_its_holder_is_named(listener):
    assert not is_free(listener)
    assert "pid" in holder(listener)


def test_a_taken_default_is_replaced_by_a_free_port(home, listener, monkeypatch):
    monkeypatch.setattr(ports_module, "DEFAULTS", {**DEFAULTS, "postgres": listener})

    chosen = Ports(home).settle(set())

    assert chosen["postgres"] != listener
    assert is_free(chosen["postgres"])
    assert len(set(chosen.values())) == len(DEFAULTS)


def test_chosen_ports_are_kept_in_a_private_file(home):
    first = Ports(home).settle(set())

    assert Ports(home).settle(set()) == first
    assert Ports(home).get("kafka") == first["kafka"]
    assert stat.S_IMODE(home.ports.stat().st_mode) == 0o600


def test_a_port_lost_while_all_is_down_is_replaced(home, monkeypatch):
    first = Ports(home).settle(set())
    with socket.create_server(("127.0.0.1", first["kafka"])):
        second = Ports(home).settle(set())

    assert second["kafka"] != first["kafka"]
    assert {name: port for name, port in second.items() if name != "kafka"} == {
        name: port for name, port in first.items() if name != "kafka"
    }


def test_a_running_part_keeps_the_port_it_listens_on(home):
    first = Ports(home).settle(set())
    with socket.create_server(("127.0.0.1", first["kafka"])):
        assert Ports(home).settle({"kafka"}) == first


def test_a_port_lost_before_its_server_ever_started_is_replaced_while_postgresql_runs(home):
    first = Ports(home).settle(set())
    with socket.create_server(("127.0.0.1", first["kafka"])):
        second = Ports(home).settle({"postgres"})

    assert second["kafka"] != first["kafka"]
    assert second["postgres"] == first["postgres"]


def test_a_lost_port_is_not_replaced_while_other_parts_rely_on_it(home):
    first = Ports(home).settle(set())
    with (
        socket.create_server(("127.0.0.1", first["kafka"])),
        pytest.raises(StackError, match=f"port {first['kafka']} of kafka is now used by"),
    ):
        Ports(home).settle({"airflow"})


def test_a_stack_that_was_never_started_has_no_ports(home):
    with pytest.raises(StackError, match="epochline up"):
        Ports(home).get("postgres")


def test_a_damaged_file_is_reported(home):
    home.ports.write_text("{")

    with pytest.raises(StackError, match="delete it"):
        Ports(home).known()
