"""What `epochline doctor` finds without a server: packages, programs, declarations, settings and connections."""

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import Literal

from epochline.cli import connections
from epochline.config import discovery
from epochline.config.connections import KAFKA, POSTGRES, SPARK_CONNECT, Connection
from epochline.config.discovery import Declared
from epochline.config.extras import install
from epochline.config.places import checkout, dags_folder
from epochline.config.resolve import file_settings, settings_file
from epochline.declare.external import Files
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import CustomSource
from epochline.errors import ConfigurationError, EpochlineError, JavaMissingError, one_line

Pipelines = Mapping[str, Pipeline]
Outcome = Literal["ok", "warning", "wrong", "not_asked"]

AIRFLOW = "apache-airflow-core"
_SPARK = "spark_default"
_ENTRIES = {"plugin": "airflow.plugins", "provider": "apache_airflow_provider"}
_FORMS = {
    "PostgreSQL": '{"conn_type": "postgres", "host": "HOST", "port": 5432, "schema": "DATABASE", "login": "LOGIN",'
    ' "password": "PASSWORD"}',
    "Kafka": '{"conn_type": "kafka", "extra": {"bootstrap.servers": "HOST:9092"}}',
    "Spark": '{"conn_type": "spark", "host": "local[*]"}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check and its outcome."""

    check: str
    """Its name, which stays the same in later versions."""
    said: str
    outcome: Outcome = "ok"
    subject: str | None = None
    """The connection, the pipeline or the file that was checked; None if there is one of its kind."""
    mend: str | None = None
    """A command, a statement or a setting; None if nothing is wrong, or if ``said`` names several."""


def not_asked(checks: Iterable[str], subject: str, why: str) -> Iterator[Check]:
    """Checks that cannot be made because an earlier one failed."""
    for check in checks:
        yield Check(check=check, subject=subject, outcome="not_asked", said=why)


def installed(pipelines: Pipelines) -> Iterator[Check]:
    """Python, the packages that Epochline needs, and those of the extras that these pipelines need."""
    from packaging.specifiers import SpecifierSet

    try:
        ours = distribution("epochline")
    except PackageNotFoundError:
        said = f"epochline runs from {Path(__file__).parents[2]} and is not installed as a package"
        yield Check(check="python", outcome="wrong", said=said, mend=_pip("install", str(checkout() or "epochline")))
        yield Check(check="packages", outcome="not_asked", said="the installed package names them")
        return
    running, wanted = sys.version.split()[0], SpecifierSet(ours.metadata["Requires-Python"] or "")
    if wanted.contains(running, prereleases=True):
        yield Check(check="python", said=f"{running} at {sys.executable}")
    else:
        said = f"{running} at {sys.executable}; epochline {ours.version} needs {wanted}"
        mend = f"install epochline in an environment of Python {wanted}"
        yield Check(check="python", outcome="wrong", said=said, mend=mend)
    for extra in (None, *_extras(pipelines)):
        yield _packages(ours, extra)


def _extras(pipelines: Pipelines) -> Iterator[str]:
    """The extras without which these pipelines do not run in this environment."""
    from epochline.config.registry import registry_connections

    paths = [sink.path for one in pipelines.values() for sink in one.sinks if isinstance(sink, Files)]
    needed = {
        "airflow": _version(AIRFLOW),
        "spark": pipelines,
        "avro": any(map(registry_connections, pipelines.values())),
        "s3": any(path.startswith("s3") for path in paths),
    }
    yield from (extra for extra, why in needed.items() if why)


def _packages(ours: Distribution, extra: str | None) -> Check:
    """Whether the packages of an extra are installed and fit; those that every installation needs without one."""
    from packaging.requirements import Requirement

    found = {
        f"{one.name}{one.specifier}": (_version(one.name), one.specifier)
        for one in map(Requirement, ours.requires or ())
        if one.name != ours.name
        and (one.marker is None or one.marker.evaluate({"extra": extra or ""}))
        and (extra is None or (one.marker is not None and not one.marker.evaluate({"extra": ""})))
    }
    unfit = {one: has for one, (has, wanted) in found.items() if has is None or not wanted.contains(has, True)}
    said = "; ".join(f"{one} is needed, {has or 'none'} is installed" for one, has in unfit.items())
    mend = _pip("install", *unfit) if extra is None else install(extra)
    client = _version("pyspark-client")
    if extra == "spark" and not unfit and _version("pyspark") != client:
        said = f"pyspark {_version('pyspark')} and pyspark-client {client} share files, and must be of one version"
        mend = _pip("install", f"pyspark=={client}", f"pyspark-client=={client}")
    if said:
        return Check(check="packages", subject=extra, outcome="wrong", said=said, mend=mend)
    return Check(check="packages", subject=extra, said=f"all {len(found)} fit epochline {ours.version}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pip(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", *arguments])


def programs(spark_connections: Sequence[str]) -> Iterator[Check]:
    """Java and spark-submit. Without its connection, nobody here knows how Spark is started."""
    spark = [_spark(connection) for connection in spark_connections]
    served = all(one is not None and one.kind == SPARK_CONNECT for one in spark)
    known = any(one is not None and one.kind != SPARK_CONNECT for one in spark)
    yield _java(needed=not served)
    if served:
        yield Check(check="spark-submit", said="not needed: every Spark connection names a Spark Connect server")
        return
    for name in dict.fromkeys(_submit(one) for one in spark if one is None or one.kind != SPARK_CONNECT):
        if (path := shutil.which(name)) is not None:
            yield Check(check="spark-submit", said=path)
            continue
        scripts = Path(sysconfig.get_path("scripts"))
        put = f'export PATH={shlex.quote(str(scripts))}:"$PATH"'
        yield Check(
            check="spark-submit",
            outcome="wrong" if known else "warning",
            said=f"there is no {name} on PATH, and pre_commit starts it on every worker of Airflow"
            + ("" if known else ", unless the connection names a Spark Connect server"),
            mend=put if (scripts / name).is_file() else _pip("install", "--force-reinstall", "--no-deps", "pyspark"),
        )


def _spark(connection_id: str) -> Connection | None:
    """The connection; None also if it cannot be understood, which another check says."""
    try:
        return connections.look_up(connection_id)
    except ConfigurationError:
        return None


def _submit(connection: Connection | None) -> str:
    return "spark-submit" if connection is None else connection.extra.get("spark-binary") or "spark-submit"


def _java(*, needed: bool) -> Check:
    from epochline.local.jars import java_executable, java_version

    try:
        java = java_executable()
        by = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "PATH"
        return Check(check="java", said=f"{java_version(java)} at {java}, by {by}")
    except JavaMissingError as error:
        said = f"{error.said}. Spark 4.2 needs Java 17 or 21."
        said += "" if needed else " Here only preview, run and replay need it."
        return Check(check="java", outcome="wrong" if needed else "warning", said=said, mend=error.mend)


def declarations() -> tuple[Declared, list[Check]]:
    """What the DAGs folder declares; nothing if there is no such folder."""
    nothing = Declared(pipelines={}, broken=())
    folder = dags_folder()
    try:
        declared = discovery.look()
    except ConfigurationError as error:
        return nothing, [
            Check(
                check="declarations", outcome="wrong", said=str(error),
                mend="export EPOCHLINE_DAGS=/the/dags/folder/of/your/Airflow",
            )
        ]  # fmt: skip
    pipelines = ", ".join(declared.pipelines)
    found = Check(check="declarations", said=f"{len(declared.pipelines)} in {folder}: {pipelines}")
    if not pipelines:
        found = Check(
            check="declarations", outcome="warning", said=f"no file in {folder} declares a pipeline",
            mend="epochline init NAME --topic TOPIC",
        )  # fmt: skip
    checks = [found]
    for broken in declared.broken:
        place, _, said = one_line(broken).partition(": ")
        mend = f"correct {place}; `epochline validate` checks it"
        checks.append(Check(check="declaration", subject=place, outcome="wrong", said=said, mend=mend))
    for file in discovery.skipped_by_safe_mode(declared, declared.pipelines):
        mend = f"""echo '# read by Airflow' >> {shlex.quote(str(file))}"""
        checks.append(
            Check(check="safe_mode", subject=str(file), outcome="warning", said=f"it {discovery.SKIPPED}", mend=mend)
        )
    return declared, checks


def settings() -> Check:
    """The settings file that is in force."""
    path = settings_file()
    try:
        names = ", ".join(sorted(file_settings().model_fields_set))
    except EpochlineError as error:
        missing = not path.exists()
        mend = "unset EPOCHLINE_SETTINGS, or set it to your settings file" if missing else f"correct {path}"
        return Check(check="settings", outcome="wrong", said=str(error), mend=mend)
    if not path.exists():
        return Check(check="settings", said=f"there is no {path}: defaults hold, and what declarations say")
    return Check(check="settings", said=f"{path} is in force" + (f": {names}" if names else ", and sets nothing"))


def entries() -> Check:
    """The entry points by which Airflow finds the pages and the provider."""
    if _version(AIRFLOW) is None:
        return Check(check="airflow", outcome="not_asked", said="Airflow is not installed here")
    missing = [
        kind
        for kind, group in _ENTRIES.items()
        if not any(entry.value.startswith("epochline.") for entry in entry_points(group=group))
    ]
    if not missing:
        return Check(check="airflow", said=f"Airflow {_version(AIRFLOW)} finds the {' and the '.join(_ENTRIES)}")
    return Check(
        check="airflow",
        outcome="wrong",
        said=f"Airflow does not find the {' and the '.join(missing)} of epochline: the entry points are not installed",
        mend=_pip("install", "--force-reinstall", "--no-deps", str(checkout() or "epochline")),
    )


def databases(pipelines: Pipelines) -> list[str]:
    """The connections of ledgers; the default one without a pipeline."""
    return sorted({one.postgres_connection for one in pipelines.values()} or {POSTGRES})


def clusters(pipelines: Pipelines) -> list[str]:
    """The connections of Kafka; the default one without a pipeline."""
    if not pipelines:
        return [KAFKA]
    read = {source.connection for one in pipelines.values() for source in one.kafka_sources.values()}
    return sorted(read | {topic.connection for one in pipelines.values() for topic in one.topics})


def spark_connections(pipelines: Pipelines) -> list[str]:
    """The connections of Spark; the default one without a pipeline."""
    return sorted({one.spark_connection for one in pipelines.values()} or {_SPARK})


def named(pipelines: Pipelines) -> Iterator[tuple[str, str]]:
    """The kind and the id of each connection that a pipeline names; the defaults without a pipeline."""
    from epochline.config.registry import registry_connections

    writers = {one.writer_connection for one in pipelines.values()}
    inputs = [input_.source for one in pipelines.values() for input_ in one.inputs.values()]
    own = {source.connection for source in inputs if isinstance(source, CustomSource)}
    registries = {name for one in pipelines.values() for name in registry_connections(one)}
    kinds = {
        "PostgreSQL": [*databases(pipelines), *sorted(filter(None, writers))],
        "Kafka": clusters(pipelines),
        "schema registry": sorted(registries),
        "source": sorted(filter(None, own)),
        "Spark": spark_connections(pipelines),
    }
    for kind, names in kinds.items():
        yield from ((kind, name) for name in names)


def connection(kind: str, name: str) -> Check:
    """Whether a connection is known and complete, and where its details are. Shows none of them."""
    from epochline.config.registry import registry_settings

    variable, adapters = connections.variable(name), connections.adapters()
    try:
        at = adapters.look_up(name)
        {"PostgreSQL": adapters.postgres_dsn, "Kafka": adapters.kafka_settings}.get(kind, str)(name)
        if kind == "schema registry":
            registry_settings(at)
    except EpochlineError as error:
        mend = f"export {variable}='{_FORMS.get(kind, '…')}'"
        if kind == "Spark" and not os.environ.get(variable):
            said = f"{kind}: {error} Commands use local[*]; Airflow needs the connection"
            return Check(check="connection", subject=name, outcome="warning", said=said, mend=mend)
        return Check(check="connection", subject=name, outcome="wrong", said=f"{kind}: {error}", mend=mend)
    return Check(check="connection", subject=name, said=f"{kind}: from {at.place}")
