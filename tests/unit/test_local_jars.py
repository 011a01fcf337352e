"""Jars: what is given out is what the lock file lists, whatever happened before."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local import jars
from epochline.local.jars import JarSet, cache_folder

CONTENT = {"one-1.0.jar": b"first", "two-2.0.jar": b"second"}
LOCK = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in CONTENT.items())


@pytest.fixture
def ivy(monkeypatch):
    """Ivy as a function that fills the folder it is told to; its calls are counted, its answers can be changed."""
    state = {"calls": 0, "content": dict(CONTENT), "code": 0, "output": ""}

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        state["calls"] += 1
        folder = Path(command[command.index("-retrieve") + 1]).parent
        for name, data in state["content"].items():
            (folder / name).write_bytes(data)
        return subprocess.CompletedProcess(command, state["code"], state["output"], "")

    monkeypatch.setattr(jars.subprocess, "run", run)
    monkeypatch.setattr(jars, "find_java", lambda: type("Java", (), {"executable": Path("java")}))
    return state


@pytest.fixture
def jar_set(tmp_path) -> JarSet:
    return JarSet("kafka", lock=LOCK, cache=tmp_path / "cache")


def test_jars_are_fetched_once(jar_set, ivy):
    first = jar_set.ensure()

    assert jar_set.ensure() == first
    assert {path.name: path.read_bytes() for path in first} == CONTENT
    assert ivy["calls"] == 1


def test_a_jar_that_differs_is_refused_deleted_and_fetched_anew(jar_set, ivy, tmp_path):
    in_ivys_cache = tmp_path / "cache" / "ivy" / "org" / "two-2.0.jar"
    in_ivys_cache.parent.mkdir(parents=True)
    in_ivys_cache.write_bytes(b"tampered")
    ivy["content"]["two-2.0.jar"] = b"tampered"

    with pytest.raises(StackError, match=r"two-2\.0\.jar"):
        jar_set.ensure()

    assert not list(tmp_path.rglob("*.jar"))
    ivy["content"] = dict(CONTENT)
    assert len(jar_set.ensure()) == 2


def test_a_missing_or_unlisted_jar_is_refused(jar_set, ivy):
    ivy["content"] = {"one-1.0.jar": b"first", "three-3.0.jar": b"x"}

    with pytest.raises(StackError, match=r"missing \['two-2.0.jar'\], not listed \['three-3.0.jar'\]"):
        jar_set.ensure()


def test_a_failed_fetch_names_its_cause_and_leaves_nothing(jar_set, ivy):
    ivy.update(code=1, output="noise\n  java.net.UnknownHostException: nowhere\nmore noise")

    with pytest.raises(StackError, match="UnknownHostException"):
        jar_set.ensure()

    assert list(jar_set.folder.parent.iterdir()) == []


def test_an_incomplete_folder_is_not_trusted(jar_set, ivy):
    jar_set.ensure()[0].unlink()

    jar_set.ensure()

    assert ivy["calls"] == 2


def test_another_lock_is_another_folder(tmp_path):
    one = JarSet("kafka", lock=LOCK, cache=tmp_path)
    two = JarSet("kafka", lock=LOCK + f"{'0' * 64}  three.jar\n", cache=tmp_path)

    assert one.folder != two.folder


@pytest.mark.parametrize("name", ["kafka", "spark"])
def test_the_shipped_locks_list_jars_with_full_checksums(name):
    expected = JarSet(name).expected

    assert expected
    assert all(len(digest) == 64 and jar.endswith(".jar") for jar, digest in expected.items())


def test_the_cache_lies_outside_the_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("EPOCHLINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "epochline"

    monkeypatch.setenv("EPOCHLINE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)

    with pytest.raises(StackError, match="EPOCHLINE_CACHE"):
        JarSet("kafka", lock=LOCK, cache=tmp_path / "cache").ensure()
