"""The commands that `epochline init` names work one after the other, on real servers."""

import shlex
import sys
from pathlib import Path

import pytest

from epochline.kafka.source import KafkaOffsets
from tests.commands import caller, connect_to
from tests.databases import query


def test_the_next_commands_bring_the_sample_record_as_far_as_the_preview(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    connect_to(monkeypatch, postgres=postgres_dsn, kafka=kafka_bootstrap)
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.begun")
    (tmp_path / "dags").mkdir()
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path / "dags"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    call = caller(monkeypatch, capsys)

    out = call("init", "begun", "--topic", topic_name, "--columns", "id bigint, at timestamptz")[1]
    _, *commands, _ = [shlex.split(line) for line in out.split("next:\n")[1].splitlines()]
    ended = [call(*command[1:]) for command in commands]

    assert [command[1] for command in commands] == ["validate", "migrate", "feed", "preview"]
    assert [code for code, _, _ in ended] == [0, 0, 0, 0]
    assert "begun: 1 record read, 1 passed, 0 skipped, 0 refused; nothing was written" in ended[-1][1]
    assert query(postgres_dsn, "SELECT count(*) FROM begun") == [(0,)]
