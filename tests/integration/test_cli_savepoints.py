"""Savepoints at a terminal: the commands of docs/state-and-time.md, and files, against a real ledger and Kafka."""

import json
import re
import shlex
from pathlib import Path

import pytest

from epochline.config import discovery
from tests.commands import Call
from tests.integration.in_process import InProcess
from tests.integration.sinks_world import in_process

PAGE = (Path(__file__).parents[2] / "docs" / "state-and-time.md").read_text()


@pytest.fixture
def committed(fed: str, postgres_dsn: str, kafka_bootstrap: str) -> InProcess:
    """A pipeline with one committed epoch, of 100 records, and 50 more to come."""
    people = in_process(postgres_dsn, kafka_bootstrap, discovery.find("people"))
    people.epoch()
    return people


def test_the_commands_of_the_page_do_what_it_says(call: Call, committed: InProcess) -> None:
    """C12, C13: made, listed, restored and deleted."""
    section = PAGE.partition("## Savepoints")[2].partition("\n## ")[0]
    block = re.search(r"```\n(epochline savepoint .*?)```", section, re.DOTALL)
    assert block is not None
    commands = block[1].replace("word_count", "people").splitlines()
    make, show, restore, delete = (shlex.split(line)[1:] for line in commands)

    assert call(*make, "--yes")[0] == 0
    committed.epoch()
    assert committed.sql("SELECT count(*) FROM people") == [(150,)]
    code, out, _ = call(*show)
    assert (code, "before-the-upgrade" in out, "version 2 goes live" in out) == (0, True, True)
    code, out, _ = call(*restore, "--yes")
    assert code == 0, out
    assert committed.sql("SELECT count(*) FROM people") == [(100,)]
    committed.epoch()
    assert committed.sql("SELECT count(*), count(DISTINCT id) FROM people") == [(150, 150)]
    assert call(*delete, "--yes")[0] == 0
    assert json.loads(call("savepoints", "people", "--json")[1]) == []
    assert "has no savepoint" in call("savepoints", "people")[1]


def test_a_savepoint_is_written_to_a_file_once_and_read_back(call: Call, committed: InProcess, tmp_path: Path) -> None:
    """C11: only the owner can read the file, no export overwrites it, and its savepoint cannot be imported twice."""
    file = tmp_path / "one.zip"
    call("savepoint", "people", "one", "--reason", "to carry it", "--yes")

    code, out, _ = call("savepoint-export", "people", "one", file)

    assert (code, "epoch 1" in out, file.stat().st_mode & 0o077) == (0, True, 0)
    assert "cannot be written: File exists" in call("savepoint-export", "people", "one", file)[2]
    assert "has no savepoint two" in call("savepoint-export", "people", "two", tmp_path / "two.zip")[2]
    assert not (tmp_path / "two.zip").exists()
    assert "is here already" in call("savepoint-import", file)[2]
    call("delete-savepoint", "people", "one", "--reason", "it is in the file", "--yes")
    code, out, _ = call("savepoint-import", file)
    assert (code, "epochline restore NEW one --of people" in out) == (0, True)
    code, _, err = call("restore", "people", "one", "--reason", "why not", "--yes")
    assert (code, "came from a file" in err) == (1, True)
