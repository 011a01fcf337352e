"""Java: 17 or 21 is taken, anything else is refused with what to install."""

from pathlib import Path

import pytest

from epochline.errors import StackError
from epochline.local.jars import find_java


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'], ids=["17", "21"]
)
def test_a_supported_java_is_taken(tmp_path: Path, says: str) -> None:
    java = fake_java(tmp_path, says)

    assert find_java({"JAVA_HOME": str(tmp_path)}) == java


@pytest.mark.parametrize(
    ("says", "code", "refusal"),
    [
        ('java version "1.8.0_402"', 0, r"Java 1\.8\.0_402.*17 or 21"),
        ('java version "11.0.22"', 0, r"Java 11\.0\.22.*17 or 21"),
        ('java version "25.0.1"', 0, r"Java 25\.0\.1.*17 or 21"),
        ("Segmentation fault", 139, "exit code 139"),
    ],
)
def test_another_java_is_refused_by_version(tmp_path: Path, says: str, code: int, refusal: str) -> None:
    fake_java(tmp_path, says, code)

    with pytest.raises(StackError, match=refusal):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_without_java_the_error_says_what_to_install_or_which_java_home_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="apt-get install"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(StackError, match=str(tmp_path)):
        find_java({"JAVA_HOME": str(tmp_path)})
