"""Find the Java 17 or 21 of the machine, which Kafka, Ivy and Spark run on."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from epochline.errors import StackError

SUPPORTED = (17, 21)
_HINT = (
    "Kafka 4.2 and Spark 4.2 need Java 17 or 21: install it (Debian, Ubuntu: `apt-get install"
    " openjdk-17-jre-headless`; Fedora: `dnf install java-21-openjdk-headless`; macOS: `brew install"
    " openjdk@21`), or set JAVA_HOME to an installed one"
)


def java_executable(environment: Mapping[str, str] | None = None) -> Path:
    """The ``java`` of `$JAVA_HOME`, else of `$PATH`; it is not run.

    Raises `StackError` if `$JAVA_HOME` has no ``java``; or it is not set, and `$PATH` has none.
    """
    env = os.environ if environment is None else environment
    java_home = env.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java", path=env.get("PATH"))
    if java is None:
        raise StackError(f"no `java` was found on PATH. {_HINT}")
    if java_home and not os.access(java, os.X_OK):
        raise StackError(f"JAVA_HOME is {java_home}, but {java} is no program. {_HINT}")
    return Path(java)


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """As `java_executable`, of a supported version.

    Raises `StackError` if no Java was found, it does not run, or it has another version.
    """
    env = os.environ if environment is None else environment
    java = java_executable(env)
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{java} does not run ({type(error).__name__}). {_HINT}") from error
    match = re.search(r'version "(\d+)([^"]*)"', answer.stderr + answer.stdout)
    if match is None:
        raise StackError(f"{java} -version gave no version (exit code {answer.returncode}). {_HINT}")
    version = match.group(1) + match.group(2)
    # Java 8 and older report 1.8 and the like: their first number is 1, which is refused as well.
    if int(match.group(1)) not in SUPPORTED:
        raise StackError(f"{java} is Java {version}. {_HINT}")
    return java
