"""What the home of a stack promises: private files, one command at a time, never a foreign folder deleted."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.home import Home, default_home, project_root, write_private


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_is_taken_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "here"))

    assert default_home() == tmp_path / "here"


def test_the_default_home_lies_in_the_checkout(monkeypatch):
    monkeypatch.delenv("EPOCHLINE_HOME", raising=False)

    assert default_home() == project_root() / ".epochline"
    assert (project_root() / "include" / "epochline").is_dir()


def test_a_private_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_private(tmp_path / "secret", "x")
    finally:
        os.umask(before)

    assert _mode(tmp_path / "secret") == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_folder_that_holds_other_things_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    home = Home(tmp_path)

    with pytest.raises(StackError, match="not made by epochline"):
        home.create()
    home.wipe()

    assert (tmp_path / "thesis.tex").exists()


def test_a_wiped_home_is_gone(tmp_path):
    home = Home(tmp_path / "home")
    home.create()

    home.wipe()

    assert not home.root.exists()
    assert not home.exists()


def test_a_second_command_waits_for_the_first(tmp_path):
    home = Home(tmp_path / "home")
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with home.lock(said.append):
            order.append("second")

    with home.lock():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.5)
        order.append("first")
    thread.join(timeout=10)

    assert order == ["first", "second"]
    assert len(said) == 1
    assert str(home) in said[0]


def test_a_command_that_waited_during_a_wipe_starts_from_nothing(tmp_path):
    home = Home(tmp_path / "home")
    seen: list[bool] = []

    def second() -> None:
        with home.lock(lambda _line: None):
            seen.append((home.root / "epochline-home").exists())

    with home.lock():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.5)
        home.wipe()
    thread.join(timeout=10)

    assert seen == [True]


def test_the_lock_of_a_killed_command_is_free(tmp_path):
    home = Home(tmp_path / "home")
    script = (
        "import os, signal, sys; from pathlib import Path; from epochline.local.home import Home\n"
        "with Home(Path(sys.argv[1])).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(project_root() / "include")}
    killed = subprocess.run([sys.executable, "-c", script, str(home)], env=environment, check=False)

    said: list[str] = []
    with home.lock(said.append):
        pass

    assert killed.returncode == -9
    assert said == []


def test_credentials_are_made_once_and_show_no_secret(tmp_path):
    home = Home(tmp_path / "home")
    home.create()

    first = credentials.ensure(home)
    again = credentials.ensure(home)

    assert first == again == credentials.load(home)
    assert _mode(home.secrets) == 0o600
    assert first.epochline not in repr(first)
    passwords = {first.postgres, first.epochline, first.airflow, first.airflow_admin}
    assert len(passwords) == 4


def test_a_home_of_an_earlier_version_gets_what_is_new_once(tmp_path):
    home = Home(tmp_path / "home")
    home.create()
    before = json.loads(credentials.ensure(home).model_dump_json())
    del before["epochline_job"]
    home.secrets.write_text(json.dumps(before))

    again = credentials.ensure(home)

    assert again == credentials.load(home)
    assert {name: getattr(again, name) for name in before} == before


def test_lost_credentials_are_not_replaced_while_data_needs_them(tmp_path):
    home = Home(tmp_path / "home")
    home.create()
    home.path("postgres", "data").mkdir(parents=True)

    with pytest.raises(StackError, match="restore the file"):
        credentials.ensure(home)


def test_damaged_credentials_are_reported_without_their_content(tmp_path):
    home = Home(tmp_path / "home")
    home.create()
    write_private(home.secrets, '{"postgres": 5, "epochline": "hunter2"')

    with pytest.raises(StackError) as caught:
        credentials.load(home)

    assert str(home.secrets) in str(caught.value)
    assert "hunter2" not in str(caught.value)
