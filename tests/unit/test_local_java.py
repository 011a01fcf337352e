"""Java: 17 or 21 is taken, anything else is refused with what to install."""

from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local.java import find_java


def _fake_java(folder: Path, says: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("says", "major"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "21" 2023-09-19', 21)],
    ids=["17", "21"],
)
def test_a_supported_java_is_taken(tmp_path, says, major):
    java = _fake_java(tmp_path, says)

    found = find_java({"JAVA_HOME": str(tmp_path)})

    assert (found.executable, found.major) == (java, major)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "25.0.1"])
def test_another_java_is_refused_by_version(tmp_path, version):
    _fake_java(tmp_path, f'java version "{version}"')

    with pytest.raises(StackError, match=rf"Java {version}.*17 or 21"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_machine_without_java_is_told_what_to_install(tmp_path):
    with pytest.raises(StackError, match="apt-get install"):
        find_java({"PATH": str(tmp_path)})


def test_a_wrong_java_home_is_named(tmp_path):
    with pytest.raises(StackError, match=str(tmp_path)):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_gives_no_version_is_refused(tmp_path):
    _fake_java(tmp_path, "Segmentation fault", code=139)

    with pytest.raises(StackError, match="exit code 139"):
        find_java({"JAVA_HOME": str(tmp_path)})
