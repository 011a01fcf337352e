"""`make release` in a clone: what it refuses, what it builds and writes. It publishes nothing."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from epochline.declare.version import VERSION
from tests.commands import git
from tests.release import problems, released

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0 - 2026-11-23\n\n- old\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What git would keep of this checkout, in one commit, with a Makefile whose `lint` is quick."""
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for path in listed:
        if (ROOT / path).exists():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "Makefile").write_text("lint:\n\t@echo linted\n")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "a checkout")
    return tmp_path


def release(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.release"], cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "include:."},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_release_is_built_checked_and_named_and_nothing_is_published(clone: Path) -> None:
    done = release(clone)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("linted\n")
    assert f"git tag --annotate v{VERSION}" in done.stdout
    assert git(clone, "status", "--porcelain") == " M CHANGELOG.md\n"
    assert f"\n## Unreleased\n\n## {VERSION} - 20" in (clone / "CHANGELOG.md").read_text()
    built = clone / "build" / "release"
    assert (built / "notes.md").read_text() == "- new\n"
    names = sorted(path.name for path in built.iterdir() if path.name != ".gitignore")
    assert names == [f"epochline-{VERSION}-py3-none-any.whl", f"epochline-{VERSION}.tar.gz", "notes.md"]
    with tarfile.open(built / names[1]) as sdist:
        assert not [name for name in sdist.getnames() if "/tests/" in name]
    assert "refused: the tree has changes" in release(clone).stderr


def test_a_release_with_a_fake_or_without_a_file_is_refused(clone: Path) -> None:
    package = clone / "include" / "epochline"
    (package / "pretended.py").write_text("class FakeLedger:\n    pass\n")
    (package / "unread.csv").write_text("not in the package data\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "wrong")

    done = release(clone)

    assert done.returncode == 1
    assert "a fake of the tests: epochline/pretended.py" in done.stderr
    assert "missing: epochline/unread.csv" in done.stderr
    assert git(clone, "status", "--porcelain") == ""


def test_a_version_gets_its_heading_once_and_an_empty_one_none() -> None:
    changelog, notes = released(CHANGELOG, "0.2.0", "2026-11-27")

    assert changelog == CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-11-27\n")
    assert notes == "- new\n"
    assert released(changelog, "0.2.0", "2027-01-01") == (changelog, notes)
    with pytest.raises(ValueError, match="says nothing about 0.3.0"):
        released(changelog, "0.3.0", "2027-01-01")


def test_a_wheel_may_have_at_most_two_megabytes(tmp_path: Path) -> None:
    wheel = tmp_path / "large.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("epochline/large.py", "x" * 2_000_001)

    assert [said for said in problems(wheel, {"epochline/large.py"}) if "bytes" in said] != []
