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
from tests.waiting import wait_until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_is_taken_from_the_environment_and_lies_in_the_checkout_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "here"))
    assert default_home() == tmp_path / "here"

    monkeypatch.delenv("EPOCHLINE_HOME")
    assert default_home() == project_root() / ".epochline"
    assert (project_root() / "include" / "epochline").is_dir()


def test_a_private_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "secret", "x")
    finally:
        os.umask(before)

    assert mode(tmp_path / "secret") == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_folder_that_holds_other_things_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    home = Home(tmp_path)

    with pytest.raises(StackError, match="not made by epochline"):
        home.create()
    home.wipe()

    assert (tmp_path / "thesis.tex").exists()


def test_a_wiped_home_is_gone(home: Home) -> None:
    home.wipe()

    assert not home.root.exists()
    assert not home.exists()


@pytest.mark.parametrize("wiped", [False, True])
def test_a_second_command_waits_for_the_first_which_may_wipe_the_home(tmp_path: Path, wiped: bool) -> None:
    home = Home(tmp_path / "home")
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with home.lock(said.append):
            order.append("second")
            assert (home.root / "epochline-home").exists()
            order.append("in a home")

    with home.lock():
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: said)
        order.append("first")
        if wiped:
            home.wipe()
    thread.join(timeout=60)

    assert order == ["first", "second", "in a home"]
    assert len(said) == 1
    assert str(home) in said[0]


def test_the_lock_of_a_killed_command_is_free(home: Home) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from epochline.local.home import Home\n"
        "with Home(Path(sys.argv[1])).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(home)], check=False).returncode == -9

    said: list[str] = []
    with home.lock(said.append):
        assert said == []


def test_credentials_are_made_once_and_show_no_secret(home: Home) -> None:
    first = credentials.ensure(home)

    assert first == credentials.ensure(home) == credentials.load(home)
    assert mode(home.secrets) == 0o600
    assert first.epochline not in repr(first)
    assert len({first.postgres, first.epochline, first.airflow, first.airflow_admin}) == 4


def test_a_home_of_an_earlier_version_gets_what_is_new_once(home: Home) -> None:
    before = json.loads(credentials.ensure(home).model_dump_json())
    del before["epochline_job"]
    home.secrets.write_text(json.dumps(before))

    again = credentials.ensure(home)

    assert again == credentials.load(home)
    assert {name: getattr(again, name) for name in before} == before


def test_lost_credentials_are_not_replaced_while_data_needs_them(home: Home) -> None:
    home.path("postgres", "data").mkdir(parents=True)

    with pytest.raises(StackError, match="restore the file"):
        credentials.ensure(home)


def test_damaged_credentials_are_reported_without_their_content(home: Home) -> None:
    write_private(home.secrets, '{"postgres": 5, "epochline": "hunter2"')

    with pytest.raises(StackError) as caught:
        credentials.load(home)

    assert str(home.secrets) in str(caught.value)
    assert "hunter2" not in str(caught.value)
