"""The wheel of this checkout, and the pins of its lock file."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCE = ("include", "pyproject.toml", "README.md", "LICENSE")


def of_git(*folders: str) -> list[str]:
    """The files that git keeps, or would keep, in the folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]


def this_checkout(folder: Path) -> None:
    """Copy what the wheel is made of."""
    for path in of_git(*SOURCE):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)


def build_wheel(folder: Path, fill: Callable[[Path], object] = this_checkout) -> Path:
    """Build a wheel in a folder, of what ``fill`` puts beside it: a build leaves files next to what it builds."""
    source = folder.with_name("source")
    source.mkdir()
    fill(source)
    uv = [sys.executable, "-m", "uv", "--offline", "--quiet", "build", "--wheel", "--no-build-isolation"]
    subprocess.run([*uv, "--python", sys.executable, "--out-dir", folder, source], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def locked(package: str) -> str:
    """The version of a package in the lock file."""
    pinned = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned is not None, package
    return pinned[1]


def lowest(*extras: str) -> Iterator[str]:
    """The lowest version that the package takes of each of its own requirements and those of the extras, as a pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for one in extras for text in project["optional-dependencies"][one])]
    for one in map(Requirement, texts):
        yield from (f"{one.name}=={least.version}" for least in one.specifier if least.operator == ">=")
