"""The machine's Java, and jars for Kafka's broker: named by an Ivy file, locked by checksum, cached once per machine.

The Ivy that ships inside pyspark fetches them, so Maven is not needed. A set is retrieved into a draft folder,
checked against its lock file and then renamed. So a folder with the final name is complete and verified, even after
an interruption.

``python -m epochline.local.prepare`` fills the cache in advance.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from epochline.config.extras import install
from epochline.errors import JavaMissingError, StackError

KAFKA = Path(__file__).parent / "ivy" / "kafka.xml"
"""The Ivy file of the broker."""


SUPPORTED = (17, 21)
_GET_JAVA = (
    "install it (Debian, Ubuntu: `apt-get install openjdk-17-jre-headless`; Fedora: `dnf install"
    " java-21-openjdk-headless`; macOS: `brew install openjdk@21`), or set JAVA_HOME to an installed one"
)


def _no_java(said: str) -> JavaMissingError:
    return JavaMissingError(f"{said}. Kafka 4.2 and Spark 4.2 need Java 17 or 21: {_GET_JAVA}", said, _GET_JAVA)


def java_executable(environment: Mapping[str, str] | None = None) -> Path:
    """The ``java`` of `$JAVA_HOME`, else of `$PATH`; it is not run.

    Raises `JavaMissingError` if `$JAVA_HOME` has no ``java``; or it is not set, and `$PATH` has none.
    """
    env = os.environ if environment is None else environment
    java_home = env.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java", path=env.get("PATH"))
    if java is None:
        raise _no_java("no `java` was found on PATH")
    if java_home and not os.access(java, os.X_OK):
        raise _no_java(f"JAVA_HOME is {java_home}, but {java} is no program")
    return Path(java)


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """As `java_executable`, of a supported version. Raises as `java_executable` and `java_version`."""
    java = java_executable(environment)
    java_version(java, environment)
    return java


def java_version(java: Path, environment: Mapping[str, str] | None = None) -> str:
    """The supported version that a ``java`` gives.

    Raises `JavaMissingError` if it does not run, or has another version.
    """
    env = os.environ if environment is None else environment
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_java(f"{java} does not run ({type(error).__name__})") from error
    match = re.search(r'version "(\d+)([^"]*)"', answer.stderr + answer.stdout)
    if match is None:
        raise _no_java(f"{java} -version gave no version (exit code {answer.returncode})")
    version = match.group(1) + match.group(2)
    # Java 8 and older report 1.8 and the like: their first number is 1, which is refused as well.
    if int(match.group(1)) not in SUPPORTED:
        raise _no_java(f"{java} is Java {version}")
    return version


def unwritable(cache: Path, error: OSError) -> StackError:
    """The error for a cache that cannot be written."""
    return StackError(f"the cache {cache} cannot be written: {error.strerror}; set EPOCHLINE_CACHE to a folder you own")


def cache_folder() -> Path:
    """`$EPOCHLINE_CACHE`, or `epochline` under `$XDG_CACHE_HOME` or `~/.cache`: outside any checkout."""
    chosen = os.environ.get("EPOCHLINE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "epochline"


class JarSet:
    """The jars of one Ivy file, as the lock file beside it (`.sha256`) lists them; by default in `cache_folder`."""

    def __init__(self, ivy: Path, cache: Path | None = None) -> None:
        self.name = ivy.stem
        text = ivy.with_suffix(".sha256").read_text()
        lines = [line.split() for line in text.splitlines() if line]
        self.expected: Mapping[str, str] = {file: digest for digest, file in lines}
        self._ivy = ivy
        self._cache = cache or cache_folder()
        # Each lock file has its own folder, so that checkouts of two versions can share a cache.
        self.folder = self._cache / "jars" / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def ensure(self, report: Callable[[str], None] = lambda _text: None) -> list[Path]:
        """The verified jars, fetched if they are missing.

        Raises:
            StackError: the jars cannot be fetched, or one differs from the lock. It is deleted then, and the next
                call fetches it again.
        """
        if not self._complete():
            try:
                self._cache.mkdir(parents=True, exist_ok=True)
                with (self._cache / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not self._complete():
                        self._fetch(report)
            except OSError as error:
                raise StackError(
                    f"the jar cache {self._cache} cannot be written: {error.strerror}; set EPOCHLINE_CACHE"
                    " to a folder you own"
                ) from error
        return [self.folder / name for name in self.expected]

    def verify(self, folder: Path) -> None:
        """Check a folder against the lock. A jar that differs is deleted, also in Ivy's cache.

        Raises `StackError` if the folder holds other jars than the lock lists, or a jar differs.
        """
        fetched = {path.name for path in folder.glob("*.jar")}
        if fetched != set(self.expected):
            missing, extra = sorted(set(self.expected) - fetched), sorted(fetched - set(self.expected))
            raise StackError(
                f"the {self.name} jars are not those of the lock file: missing {missing}, not listed {extra}"
            )
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in self.expected}
        wrong = sorted(name for name, digest in digests.items() if digest != self.expected[name])
        for name in wrong:
            for copy in (folder / name, *(self._cache / "ivy").rglob(name)):
                copy.unlink(missing_ok=True)
        if wrong:
            raise StackError(
                f"these {self.name} jars differ from their recorded checksums and were deleted: {', '.join(wrong)}."
                " Run the command again to fetch them again. If this error repeats, do not trust your repository"
            )

    def _complete(self) -> bool:
        return all((self.folder / name).is_file() for name in self.expected)

    def _fetch(self, report: Callable[[str], None]) -> None:
        java, jars = find_java(), sorted(installed_pyspark().glob("jars/ivy-*.jar"))
        if not jars:
            raise StackError(f"the installed pyspark lacks its Ivy jar; run `{install('spark')}`")
        report(f"fetching {len(self.expected)} {self.name} jars into {self._cache} (once per machine)")
        self.folder.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{self.name}-", dir=self.folder.parent))
        try:
            command = [
                str(java), "-jar", str(jars[-1]), "-ivy", str(self._ivy),
                "-cache", str(self._cache / "ivy"), "-types", "jar", "bundle",
                "-retrieve", f"{draft}/[artifact]-[revision].[ext]",
            ]  # fmt: skip
            if settings := os.environ.get("EPOCHLINE_IVY_SETTINGS"):
                command += ["-settings", settings]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode != 0:
                raise StackError(
                    f"the {self.name} jars could not be fetched: {_cause(answer.stdout + answer.stderr)}."
                    " Check the network. To use a mirror, name an Ivy settings file in EPOCHLINE_IVY_SETTINGS"
                )
            self.verify(draft)
            shutil.rmtree(self.folder, ignore_errors=True)
            draft.chmod(0o755)
            draft.rename(self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def installed_pyspark() -> Path:
    """The folder of the installed pyspark. It is found without an import, which takes a second.

    Raises `StackError` if pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError(f"pyspark is not installed in this Python; run `{install('spark')}`")
    return Path(spec.origin).parent


def _cause(output: str) -> str:
    words = ("Exception", "not found", "FAILED")
    reasons = [line.strip() for line in output.splitlines() if any(word in line for word in words)]
    return "; ".join(dict.fromkeys(reasons[:3])) or "Ivy gave no reason"
