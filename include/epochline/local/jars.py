"""Jars for Kafka's broker: named by an Ivy file, locked by checksum, cached once per machine.

The Ivy that ships inside pyspark fetches them, so Maven is not needed. A set is retrieved into a draft folder,
checked against its lock file and then renamed. So a folder with the final name is complete and verified, even after
an interruption.

``python -m epochline.local.prepare`` fills the cache in advance.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from epochline.errors import StackError
from epochline.local.java import find_java

KAFKA = Path(__file__).parent / "ivy" / "kafka.xml"
"""The Ivy file of the broker."""


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
                with _locked(self._cache / "lock"):
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
        java = find_java()
        report(f"fetching {len(self.expected)} {self.name} jars into {self._cache} (once per machine)")
        self.folder.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{self.name}-", dir=self.folder.parent))
        try:
            command = [
                str(java), "-jar", str(_ivy_jar()), "-ivy", str(self._ivy),
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
        raise StackError("pyspark is not installed in this Python; run `make setup`")
    return Path(spec.origin).parent


def _ivy_jar() -> Path:
    jars = sorted(installed_pyspark().glob("jars/ivy-*.jar"))
    if not jars:
        raise StackError("the installed pyspark lacks its Ivy jar; run `make setup`")
    return jars[-1]


def _cause(output: str) -> str:
    words = ("Exception", "not found", "FAILED")
    reasons = [line.strip() for line in output.splitlines() if any(word in line for word in words)]
    return "; ".join(dict.fromkeys(reasons[:3])) or "Ivy gave no reason"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
