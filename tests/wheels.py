"""Wheels of this checkout and of earlier commits, environments that have one, and the pins of the lock file."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCE = ("include", "pyproject.toml", "README.md", "LICENSE")

OLDER = "e08fd0146eb6"
"""The last commit of 0.1.0 whose ledger is that of 0.2.0 but for the migration that made versions known."""

RELEASED = "aa1ab02a"
"""The commit of release 0.2.0."""

NOTHING: Mapping[str, str] = {}


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


def of_commit(commit: str) -> Callable[[Path], None]:
    """Copies what the wheel of an earlier commit is made of; skips the test in a checkout without history."""

    def fill(folder: Path) -> None:
        archived = subprocess.run(["git", "archive", commit, *SOURCE], cwd=ROOT, capture_output=True, check=False)
        if archived.returncode:
            pytest.skip("the checkout has no history: the older wheel cannot be built")
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as files:
            files.extractall(folder, filter="data")

    return fill


def build_wheel(folder: Path, fill: Callable[[Path], object] = this_checkout) -> Path:
    """Build a wheel in a folder, of what ``fill`` puts beside it: a build leaves files next to what it builds."""
    source = folder.with_name("source")
    source.mkdir()
    fill(source)
    uv = [sys.executable, "-m", "uv", "--offline", "--quiet", "build", "--wheel", "--no-build-isolation"]
    subprocess.run([*uv, "--python", sys.executable, "--out-dir", folder, source], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """An environment with every package of this one, but Epochline from a wheel."""

    wheel: Path
    python: Path

    @property
    def packages(self) -> Path:
        """Its folder of installed packages."""
        return self.python.parents[1] / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a terminal that knows nothing of Epochline, and these."""
        names = ("AIRFLOW", "EPOCHLINE", "PYTHON", "PYSPARK", "SPARK_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        return {**kept, "COLUMNS": "300", **variables}

    def run(self, *command: object, folder: Path, code: int = 0, variables: Mapping[str, str] = NOTHING) -> str:
        """What a program of the environment says, run in the folder by a terminal that knows nothing of Epochline."""
        program, *arguments = map(str, command)
        done = subprocess.run(
            [self.python.with_name(program), *arguments], cwd=folder, env=self.environment(variables),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def answer(self, code: str, folder: Path, *arguments: str, **variables: str) -> Any:
        """The JSON that a piece of Python prints last."""
        said = self.run("python", "-c", code, *arguments, folder=folder, variables=variables)
        return json.loads(said.splitlines()[-1])


@contextmanager
def installation(fill: Callable[[Path], object]) -> Iterator[Installed]:
    """Builds a wheel of the source that ``fill`` puts into a folder, and installs it in an environment of its own."""
    folder = Path(tempfile.mkdtemp(prefix="epochline-wheel-"))
    uv = [sys.executable, "-m", "uv", "--offline", "--quiet"]
    try:
        wheel = build_wheel(folder / "wheel", fill)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        made = Installed(wheel, folder / "venv" / "bin" / "python")
        for package in Path(sysconfig.get_path("purelib")).iterdir():
            if not package.name.startswith(("epochline", "__editable__")):
                (made.packages / package.name).symlink_to(package)
        subprocess.run([*uv, "pip", "install", "--no-deps", "--python", made.python, wheel], cwd=folder, check=True)
        yield made
    finally:
        shutil.rmtree(folder)


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
