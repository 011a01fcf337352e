"""What is needed beforehand is looked for first, and what is missing is named together with how to get it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "include" / "prerequisites.sh"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs that stands for a machine: bash's own tools, no Python and no Java."""
    for tool in ("bash", "sed", "head", "env"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def install_python(folder: Path) -> None:
    (folder / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")


def install_java(folder: Path, version: str) -> None:
    java = folder / "java"
    java.write_text(f"#!{folder}/bash\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)


def asked(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT)], env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


def test_with_python_and_java_it_prints_the_python_to_use(machine: Path) -> None:
    install_python(machine)
    install_java(machine, "17.0.15")

    done = asked(machine)

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "python3", "")


@pytest.mark.parametrize(
    ("python", "java", "said"),
    [
        (False, "17.0.15", ["needs Python 3.11, 3.12 or 3.13"]),
        (True, "11.0.2", ["needs Java 17 or 21", "found Java 11"]),
        (True, "1.8.0_392", ["needs Java 17 or 21", "found Java 1"]),
        (True, "", ["needs Java 17 or 21", "found none"]),
    ],
)
def test_what_is_missing_is_named_with_what_would_do(machine: Path, python: bool, java: str, said: list[str]) -> None:
    if python:
        install_python(machine)
    if java:
        install_java(machine, java)

    done = asked(machine)

    assert done.returncode == 1
    assert [text for text in said if text not in done.stderr] == []
