"""A real schema registry (Apicurio, by its Confluent API), fetched once per machine as the jars of the product are."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from epochline.local.home import LOOPBACK
from epochline.local.jars import cache_folder, find_java, installed_pyspark
from tests.waiting import wait_for

_IVY = Path(__file__).with_suffix(".xml")
_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
_API = "apis/ccompat/v7"
_PATIENCE = 180


class SchemaRegistry:
    """One registry process; its schemas are gone when it stops."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"http://{LOOPBACK}:{port}/{_API}"
        self._port = port
        self._log: IO[bytes] = (folder / "registry.log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (runner,) = _application().glob("*-runner.jar")
        options = ["-Xmx400m", f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self._port}"]
        command = [str(find_java()), *options, "-jar", str(runner)]
        self._process = subprocess.Popen(command, cwd=runner.parent, stdout=self._log, stderr=subprocess.STDOUT)
        wait_for(f"the registry answers; see {self._log.name}", self._answers, _PATIENCE, every=0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None
        self._log.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the registry ended; see {self._log.name}"
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # URLError is one
            return False


def _application() -> Path:
    """The unpacked distribution; a folder of its final name is complete and genuine."""
    folder = cache_folder() / f"registry-{_SHA256[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".registry-", dir=folder.parent))
    try:
        archive = _fetched(draft)
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == _SHA256, f"{archive.name} is not the recorded one"
        with tarfile.open(archive) as packed:
            packed.extractall(draft / "app", filter="data")
        try:
            (draft / "app").rename(folder)
        except OSError:
            assert folder.is_dir()  # another test run was faster
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetched(folder: Path) -> Path:
    (ivy,) = installed_pyspark().glob("jars/ivy-*.jar")
    command = [str(find_java()), "-jar", str(ivy), "-ivy", str(_IVY), "-cache", str(folder / "ivy")]
    command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    if "EPOCHLINE_IVY_SETTINGS" in os.environ:
        command += ["-settings", os.environ["EPOCHLINE_IVY_SETTINGS"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (archive,) = folder.glob("*.tar.gz") if done.returncode == 0 else (None,)
    assert archive is not None, f"the registry could not be fetched: {done.stdout[-2000:]}"
    return archive
