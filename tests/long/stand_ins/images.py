"""Builds the stand-ins with debootstrap, this process's Python, and the Kafka and PostgreSQL of the embedded stack."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from epochline.local import jars
from epochline.local.postgres import binaries

HERE = Path(__file__).parent
BASE = "epochline-stand-in:base"
"""For the argument BASE of the Dockerfile: Debian with a Python below /usr/local."""

LIBRARIES = (
    "ca-certificates", "libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "zlib1g", "libreadline8",
    "libncursesw6", "libuuid1", "libexpat1",
)  # fmt: skip
"""Of Debian, on which Python's own modules rest."""

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
TRUSTED = Path("/usr/local/share/ca-certificates")
PIP = '#!/bin/sh\nexec python -m pip "$@"\n'
KAFKA = f"""
FROM {BASE}
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
COPY libs /opt/kafka/libs/
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
COPY start_kafka.py /opt/kafka/
ENTRYPOINT ["python", "/opt/kafka/start_kafka.py"]
"""
POSTGRES = f"""
FROM {BASE}
RUN useradd --create-home --home-dir /var/lib/postgresql postgres
COPY site /opt/site/
ENV PATH=/opt/site/{{folder}}:$PATH
COPY start_postgres.sh /
ENTRYPOINT ["/start_postgres.sh"]
"""


def make_stand_ins(kafka: str, postgres: str) -> None:
    """Build `BASE` and, under the given tags, the stand-ins for Kafka and PostgreSQL. Needs root and debootstrap."""
    with tempfile.TemporaryDirectory(prefix="epochline-images-") as name:
        folder = Path(name)
        _make_base(folder / "base")
        _make_kafka(folder / "kafka", kafka)
        _make_postgres(folder / "postgres", postgres)


def _make_base(root: Path) -> None:
    run("debootstrap", "--variant=minbase", f"--include={','.join(LIBRARIES)}", "bookworm", str(root))
    # What the official image of Python lacks as well.
    without = shutil.ignore_patterns("site-packages", "test", "tests", "idle_test", "config-*", "__pycache__")
    shutil.copytree(sys.base_prefix, root / "usr" / "local", symlinks=True, dirs_exist_ok=True, ignore=without)
    # What this machine trusts: Python reads the file, and Java takes what the command below finds in the folder.
    shutil.copytree(TRUSTED, root / TRUSTED.relative_to("/"), dirs_exist_ok=True)
    run("chroot", str(root), "update-ca-certificates")
    # Python may be built with a library of its own, which then lies below /usr/local, too.
    run("chroot", str(root), "ldconfig")
    shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
    program = root / "usr" / "local" / "bin"
    (program / "python").unlink(missing_ok=True)
    (program / "python").symlink_to(f"python{sys.version_info.major}.{sys.version_info.minor}")
    run("chroot", str(root), "python", "-m", "ensurepip")
    (program / "pip").write_text(PIP)
    (program / "pip").chmod(0o755)
    packed = root.with_suffix(".tar")
    run("tar", "-C", str(root), "-cf", str(packed), ".")
    run("docker", "import", "--change", f"ENV PIP_CERT={AUTHORITIES}", str(packed), BASE)


def _make_kafka(folder: Path, tag: str) -> None:
    (folder / "libs").mkdir(parents=True)
    for jar in jars.JarSet(jars.KAFKA).ensure():
        shutil.copy(jar, folder / "libs")
    _build(folder, tag, KAFKA, "start_kafka.py", "kafka-broker-api-versions.sh")


def _make_postgres(folder: Path, tag: str) -> None:
    programs = binaries()
    package = programs.parents[1]
    # The programs find their libraries by a path from where they lie in the package.
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, folder / "site" / part.name, symlinks=True)
    _build(folder, tag, POSTGRES.format(folder=programs.relative_to(package.parent)), "start_postgres.sh")


def _build(folder: Path, tag: str, text: str, *programs: str) -> None:
    for program in programs:
        shutil.copy(HERE / program, folder)
    (folder / "Dockerfile").write_text(text)
    run("docker", "build", "--network", "host", "--tag", tag, str(folder))


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=3600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
