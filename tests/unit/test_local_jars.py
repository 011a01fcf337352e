"""What a stack runs on: jars that the lock file lists, a home of Spark, and the Java and Python of the machine."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochline.errors import JavaMissingError, StackError
from epochline.local import spark_home as module
from epochline.local.jars import KAFKA, JarSet, cache_folder, find_java
from epochline.local.spark_home import spark_home

ROOT = Path(__file__).parents[2]
CONTENT = {"one-1.0.jar": b"first", "two-2.0.jar": b"second"}
LOCK = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in CONTENT.items())


class Ivy:
    """Fills the folder that a call names; counts its calls, and its answer can be changed."""

    def __init__(self) -> None:
        self.calls, self.content, self.code, self.output = 0, dict(CONTENT), 0, ""

    def run(self, command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        folder = Path(command[command.index("-retrieve") + 1]).parent
        for name, data in self.content.items():
            (folder / name).write_bytes(data)
        return subprocess.CompletedProcess(command, self.code, self.output, "")


@pytest.fixture
def ivy(monkeypatch: pytest.MonkeyPatch) -> Ivy:
    ivy = Ivy()
    monkeypatch.setattr("epochline.local.jars.subprocess.run", ivy.run)
    monkeypatch.setattr("epochline.local.jars.find_java", lambda: Path("java"))
    return ivy


@pytest.fixture
def jar_set(tmp_path: Path) -> JarSet:
    return jar_set_of(tmp_path / "some.xml", LOCK)


def jar_set_of(ivy: Path, lock: str) -> JarSet:
    """The set of an Ivy file beside which this lock file lies."""
    ivy.with_suffix(".sha256").write_text(lock)
    return JarSet(ivy, cache=ivy.parent / "cache")


def test_jars_are_fetched_once_and_again_where_one_is_missing(jar_set: JarSet, ivy: Ivy) -> None:
    first = jar_set.ensure()
    assert jar_set.ensure() == first
    assert {path.name: path.read_bytes() for path in first} == CONTENT
    assert ivy.calls == 1

    first[0].unlink()
    jar_set.ensure()
    assert ivy.calls == 2


def test_a_jar_that_differs_is_refused_deleted_and_fetched_again(jar_set: JarSet, ivy: Ivy, tmp_path: Path) -> None:
    in_ivys_cache = tmp_path / "cache" / "ivy" / "org" / "two-2.0.jar"
    in_ivys_cache.parent.mkdir(parents=True)
    in_ivys_cache.write_bytes(b"tampered")
    ivy.content["two-2.0.jar"] = b"tampered"

    with pytest.raises(StackError, match=r"two-2\.0\.jar"):
        jar_set.ensure()

    assert not list(tmp_path.rglob("*.jar"))
    ivy.content = CONTENT
    assert len(jar_set.ensure()) == 2


def test_a_missing_or_unlisted_jar_is_refused(jar_set: JarSet, ivy: Ivy) -> None:
    ivy.content = {"one-1.0.jar": b"first", "three-3.0.jar": b"x"}

    with pytest.raises(StackError, match=r"missing \['two-2.0.jar'\], not listed \['three-3.0.jar'\]"):
        jar_set.ensure()


def test_a_failed_fetch_names_its_cause_and_leaves_nothing(jar_set: JarSet, ivy: Ivy) -> None:
    ivy.code, ivy.output = 1, "noise\n  java.net.UnknownHostException: nowhere\nmore noise"

    with pytest.raises(StackError, match="UnknownHostException"):
        jar_set.ensure()

    assert list(jar_set.folder.parent.iterdir()) == []


def test_another_lock_is_another_folder(jar_set: JarSet, tmp_path: Path) -> None:
    other = jar_set_of(tmp_path / "some.xml", LOCK + f"{'0' * 64}  three.jar\n")

    assert other.folder != jar_set.folder


@pytest.mark.parametrize("ivy", [KAFKA, ROOT / "bench" / "ivy" / "spark.xml"], ids=lambda path: path.stem)
def test_the_shipped_locks_list_jars_with_full_checksums(ivy: Path) -> None:
    expected = JarSet(ivy).expected

    assert expected
    assert all(len(digest) == 64 and jar.endswith(".jar") for jar, digest in expected.items())


def test_the_cache_lies_outside_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EPOCHLINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "epochline"

    monkeypatch.setenv("EPOCHLINE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_a_cache_that_cannot_be_written_is_named(jar_set: JarSet, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()

    with pytest.raises(StackError, match="the jar cache .*cache cannot be written.*EPOCHLINE_CACHE"):
        jar_set.ensure()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyspark as pip installs it, and an empty cache."""
    folder = tmp_path / "pyspark"
    for name in ("bin", "jars", "sbin", "python/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "python/lib/pyspark.zip").touch()
    monkeypatch.setattr(module, "installed_pyspark", lambda: folder)
    monkeypatch.setenv("EPOCHLINE_CACHE", str(tmp_path / "cache"))
    return folder


def test_launcher_and_jars_are_there_once_per_installation_and_no_archive_of_python(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home()

    names = ("bin", "jars", "sbin")
    assert {one.name: one.resolve() for one in home.iterdir()} == {name: installed / name for name in names}
    assert spark_home() == home

    other = installed.rename(installed.with_name("other"))
    monkeypatch.setattr(module, "installed_pyspark", lambda: other)
    assert spark_home() != home


def test_a_package_without_archives_is_taken_as_it_is(installed: Path) -> None:
    (installed / "python/lib/pyspark.zip").unlink()

    assert spark_home() == installed


@pytest.mark.usefixtures("installed")
def test_a_cache_of_spark_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()

    with pytest.raises(StackError, match=r"the cache .*cache cannot be written.*EPOCHLINE_CACHE"):
        spark_home()


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
    assert fake_java(tmp_path, says) == find_java({"JAVA_HOME": str(tmp_path)})


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
    with pytest.raises(JavaMissingError, match="apt-get install") as missing:
        find_java({"PATH": str(tmp_path)})
    assert missing.value.said == "no `java` was found on PATH"
    assert missing.value.mend.startswith("install it (Debian, Ubuntu: `apt-get install")
    with pytest.raises(StackError, match=str(tmp_path)):
        find_java({"JAVA_HOME": str(tmp_path)})


SCRIPT = ROOT / "include" / "prerequisites.sh"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs that stands for a machine: bash's own tools, no Python and no Java."""
    for tool in ("bash", "sed", "head", "env"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def install_java(folder: Path, version: str) -> None:
    java = folder / "java"
    java.write_text(f"#!{folder}/bash\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("python", "java", "said"),
    [
        (True, "17.0.15", []),
        (False, "17.0.15", ["needs Python 3.11, 3.12 or 3.13"]),
        (True, "11.0.2", ["needs Java 17 or 21", "found Java 11"]),
        (True, "1.8.0_392", ["needs Java 17 or 21", "found Java 1"]),
        (True, "", ["needs Java 17 or 21", "found none"]),
    ],
)
def test_what_is_missing_is_named_with_what_would_do(machine: Path, python: bool, java: str, said: list[str]) -> None:
    """Where nothing is missing, the Python to use is printed."""
    if python:
        (machine / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    if java:
        install_java(machine, java)

    done = subprocess.run(["bash", SCRIPT], env={"PATH": str(machine)}, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == ((1, "") if said else (0, "python3"))
    assert [text for text in said if text not in done.stderr] == []
    assert said or done.stderr == ""
