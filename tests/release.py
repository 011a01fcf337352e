"""Prepares a release, and publishes nothing: ``python -m tests.release``, or ``make release``.

Refuses a dirty tree. Builds wheel and sdist of the last commit, checks them, and writes the changelog's heading.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from epochline.declare.version import VERSION

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2_000_000
NOT_FOR_RUNNING = {"epochline_examples/README.md"}
PACKAGES = ("include/epochline", "include/epochline_examples")
FAKE = re.compile(rb"^class \w*(?:Fake|Mock|Stub)\w*", re.MULTILINE)
UV_BUILD = (
    sys.executable,
    "-m",
    "uv",
    "--offline",
    "--quiet",
    "build",
    "--no-build-isolation",
    "--python",
    sys.executable,
)


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel but for its metadata, by path."""
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist() if ".dist-info/" not in name}


def problems(wheel: Path, expected: set[str]) -> list[str]:
    """What is wrong with a wheel that should hold these paths of ``include/``."""
    files = contents(wheel)
    found = [f"missing: {name}" for name in sorted(expected - NOT_FOR_RUNNING - files.keys())]
    found += [f"too much: {name}" for name in sorted(files.keys() - (expected - NOT_FOR_RUNNING))]
    found += [f"a fake of the tests: {name}" for name, content in files.items() if FAKE.search(content)]
    if (size := wheel.stat().st_size) > MOST_BYTES:
        found.append(f"{size} bytes, at most {MOST_BYTES} are allowed")
    return found


def released(changelog: str, version: str, day: str) -> tuple[str, str]:
    """The changelog with *Unreleased* under the heading of a version, and the notes of that version.

    A repeat changes nothing. Raises `ValueError` if there is nothing to release.
    """
    if f"\n## {version} - " not in changelog:
        changelog = changelog.replace("\n## Unreleased\n", f"\n## Unreleased\n\n## {version} - {day}\n", 1)
    (notes,) = re.findall(rf"^## {re.escape(version)} - .*?$\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not notes.strip():
        raise ValueError(f"CHANGELOG.md says nothing about {version}")
    return changelog, notes.strip() + "\n"


def main() -> None:
    """Prepare the release of the last commit."""
    if changed := _git("status", "--porcelain").decode():
        sys.exit(f"refused: the tree has changes that no commit has\n{changed}")
    subprocess.run(["make", "lint"], cwd=ROOT, check=True)
    log = ROOT / "CHANGELOG.md"
    try:
        changelog, notes = released(log.read_text(), VERSION, f"{datetime.now(UTC):%Y-%m-%d}")
    except ValueError as error:
        sys.exit(f"refused: {error}")
    out = ROOT / "build" / "release"
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=_git("archive", "HEAD"), check=True)
        expected = {
            str(path.relative_to(source / "include"))
            for folder in PACKAGES
            for path in (source / folder).rglob("*")
            if path.is_file()
        }
        # Of both, the wheel is built from the sdist.
        subprocess.run([*UV_BUILD, "--clear", "--out-dir", out, source], check=True)
        subprocess.run([*UV_BUILD, "--wheel", "--out-dir", Path(temporary), source], check=True)
        (wheel,), (sdist,), (direct,) = out.glob("*.whl"), out.glob("*.tar.gz"), Path(temporary).glob("*.whl")
        found = problems(wheel, expected)
        if contents(wheel) != contents(direct):
            found.append(f"{sdist.name} builds another wheel than the checkout")
    with tarfile.open(sdist) as files:
        found += [f"in the sdist: {name}" for name in files.getnames() if "/tests/" in name]
    if found:
        sys.exit("\n".join([f"refused: {wheel.name}", *found]))
    log.write_text(changelog)
    (out / "notes.md").write_text(notes)
    print(f"""{wheel} and {sdist.name} are complete ({wheel.stat().st_size:,} bytes). Nothing was published. Next:
  git commit --all --message "chore: release {VERSION}"
  git tag --annotate v{VERSION} --cleanup=verbatim --file {out / "notes.md"}
  git push origin main v{VERSION}
  uv publish {out}/*.whl {out}/*.tar.gz""")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
