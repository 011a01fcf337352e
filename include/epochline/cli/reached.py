"""What `epochline doctor` finds at the servers: PostgreSQL with its ledger and targets, Kafka and sinks.

The rules are those of `migrate`, of the plan and of a writer's check. Nothing is changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochline.cli import connections, database_settings, kafka_settings, printing
from epochline.cli.database_settings import reset
from epochline.cli.installation import Check, not_asked
from epochline.cli.machine import settings_of
from epochline.cli.standing import Servers
from epochline.config.versions import RANGES
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.topic import KafkaTopic
from epochline.errors import (
    EpochlineError,
    PipelineStandsError,
    RightsMissingError,
    SourceUnavailableError,
    TopicMissingError,
    VersionError,
    one_line,
)

if TYPE_CHECKING:
    from epochline.cli.database import Session

_OF_LEDGER = ("ledger", "rights", "session_replication_role", "read_only", *database_settings.OF_SETTINGS)
_NO_TOPIC = KafkaSource(pattern="no topic has a name with blanks")
"""A look at it gives the cluster alone."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """What was asked so far, so that no check is made in vain."""

    servers: Servers
    usable: set[str | None]
    """Ids of the connections that are complete."""
    sound: set[str] = field(default_factory=set)
    """Ids of the connections whose server answers as it should."""

    def database(self, name: str, pipelines: Sequence[Pipeline]) -> Iterator[Check]:
        """The server, its ledger, this login, and the targets and writers of pipelines."""
        found = list(_database(name, pipelines) if name in self.usable else _unusable(name))
        yield from found
        beside = ("read_only", *database_settings.OF_SETTINGS)
        if not any(check.outcome in ("wrong", "not_asked") and check.check not in beside for check in found):
            self.sound.add(name)
        for pipeline in pipelines:
            if name not in self.sound:
                yield from not_asked(("targets",), pipeline.name, f"{name} is not as it should be")
                continue
            yield _targets(pipeline)
            if pipeline.writer_connection is not None:
                of_writer = self._writer(pipeline, pipeline.writer_connection)
                yield of_writer
                if of_writer.outcome == "ok":
                    yield self._limits_of_writer(pipeline, pipeline.writer_connection)

    def _writer(self, pipeline: Pipeline, writer: str) -> Check:
        about: dict[str, Any] = {"check": "writer", "subject": writer}
        if writer not in self.usable:
            return Check(**about, outcome="not_asked", said="the connection is not usable")
        try:
            connections.adapters().check_writer(pipeline)
        except EpochlineError as error:
            return _wrong(error, **about)
        return Check(**about, said="may stage, and can be fenced")

    def _limits_of_writer(self, pipeline: Pipeline, writer: str) -> Check:
        """The limits of the login that stages."""
        from epochline.cli import database
        from epochline.postgres.queries.statements import run

        try:
            with database.session(connections.adapters().postgres_dsn(writer), any_version=True) as opened:
                state = run(opened, "session_state").one()
        except EpochlineError as error:
            return Check(check="time_limits", subject=writer, outcome="not_asked", said=one_line(error))
        return database_settings.time_limits(writer, [pipeline], state, statements=True)

    def kafka(self, name: str, pipelines: Sequence[Pipeline]) -> Iterator[Check]:
        """Whether a cluster answers, its id, and its settings."""
        answers = self._cluster(name)
        yield answers
        if answers.outcome != "ok":
            yield from not_asked(kafka_settings.OF_SETTINGS, name, f"{name} is not as it should be")
            return
        from epochline.kafka.examined import examine

        sources, sent = kafka_settings.sources_read(name, pipelines), kafka_settings.topics_sent(name, pipelines)
        try:
            found = examine(connections.adapters().kafka_settings(name), sources, sent)
        except EpochlineError as error:
            yield from not_asked(kafka_settings.OF_SETTINGS, name, one_line(error))
            return
        yield from kafka_settings.kafka_settings(name, found, pipelines)

    def _cluster(self, name: str) -> Check:
        about: dict[str, Any] = {"check": "kafka", "subject": name}
        if name not in self.usable:
            return Check(**about, outcome="not_asked", said="the connection is not usable")
        printing.progress(f"asking Kafka of {name}, for at most 15 seconds …")
        try:
            cluster = self.servers.kafka(name).look(_NO_TOPIC).cluster_id
        except EpochlineError as error:
            away = isinstance(error, SourceUnavailableError)
            what = "bootstrap.servers, or start the brokers" if away else "user and password"
            return _wrong(error, **about, mend=_correct(name, what))
        self.sound.add(name)
        return Check(**about, said=f"cluster {cluster} answers")

    def source(self, pipeline: Pipeline) -> Check:
        """Whether the topics of a pipeline exist, can be read, and are not held back."""
        about: dict[str, Any] = {"check": "source", "subject": pipeline.name}
        for asked in pipeline.kafka_sources.values():
            if asked.connection not in self.sound:
                return Check(**about, outcome="not_asked", said=f"the Kafka of {asked.connection} was not reached")
        try:
            view = self.servers.source(pipeline).look(pipeline.source)
        except TopicMissingError as error:
            # Kafka allows no slash in a name; one of several sources puts its own name and a slash before it.
            names = [topic.rpartition("/")[2] for topic in sorted(error.topics)]
            create = "kafka-topics.sh --bootstrap-server HOST:9092 --create --partitions 1 --topic"
            return _wrong(error, **about, mend=" && ".join(f"{create} {name}" for name in names))
        except EpochlineError as error:
            return _wrong(error, **about)
        return Check(**about, **kafka_settings.readable(view))

    def sinks(self, pipeline: Pipeline) -> Iterator[Check]:
        """Whether each topic, store or sink of one's own would show an epoch, as a plan asks."""
        for declared in pipeline.post_commit_sinks:
            about: dict[str, Any] = {"check": "sink", "subject": f"{pipeline.name} {declared.name}"}
            needed = [pipeline.postgres_connection]
            needed += [declared.connection] if isinstance(declared, KafkaTopic) else []
            if missing := [name for name in needed if name not in self.sound]:
                yield Check(**about, outcome="not_asked", said=f"{missing[0]} is not as it should be")
                continue
            try:
                sink = connections.adapters().ledger(pipeline).sink(pipeline, declared.name)
                if hasattr(sink, "preflight"):
                    sink.preflight(pipeline.name)
                yield Check(**about | {"said": "takes an epoch"} | _short_transaction(pipeline, declared))
            except EpochlineError as error:
                yield _wrong(error, **about)
            except Exception as error:  # A sink of one's own may raise anything, with any text.
                said = f"its preflight raised {type(error).__name__}"
                yield Check(**about, outcome="wrong", said=said, mend=f"epochline plan {pipeline.name}")


def _short_transaction(pipeline: Pipeline, sink: object) -> dict[str, Any]:
    """What replaces the outcome of a topic whose transactions end before the restart strategy tries again."""
    if not isinstance(sink, KafkaTopic):
        return {}
    from epochline.coordinator.publish import short_transaction

    said = short_transaction(sink, settings_of(pipeline).restart)
    mend = f"in {pipeline.name}, raise transaction_timeout of {sink.name}"
    return {} if said is None else {"outcome": "warning", "said": said, "mend": mend}


def _wrong(error: EpochlineError, check: str, subject: str, mend: str | None = None) -> Check:
    """What an error says, and what mends it, as far as the error knows it as data."""
    if isinstance(error, RightsMissingError):
        mend = " ".join(error.statements)
    elif isinstance(error, PipelineStandsError) and error.command == "migrate":
        return Check(check=check, subject=subject, outcome="wrong", said=one_line(error.said), mend="epochline migrate")
    return Check(check=check, subject=subject, outcome="wrong", said=one_line(error), mend=mend)


def _correct(name: str, what: str) -> str:
    """What mends a connection; the embedded stack's is always as its servers are."""
    place = connections.look_up(name).place
    return "epochline up" if place.startswith(connections.EMBEDDED) else f"in {place}, correct {what}"


def _unusable(name: str) -> Iterator[Check]:
    return not_asked(("postgresql", *_OF_LEDGER), name, "the connection is not usable")


def _database(name: str, pipelines: Sequence[Pipeline]) -> Iterator[Check]:
    from psycopg2.extensions import parse_dsn

    from epochline.cli import database
    from epochline.config.logins import divided
    from epochline.postgres.ledger import migrate

    printing.progress(f"asking PostgreSQL of {name}, for at most 10 seconds …")
    mend = _correct(name, "host, port, login and password")
    dsn = connections.adapters().postgres_dsn(name)
    try:
        with database.session(dsn, any_version=True) as opened:
            version, mend = opened.info.server_version, "upgrade the server, or name another one in the connection"
            migrate.refuse_an_older_server(version)
            mend = migrate.database_with_utf8(opened)
            migrate.refuse_other_encoding(opened)
            number, supported = f"{version // 10_000}.{version % 10_000}", RANGES["PostgreSQL"]
            said, newer = f"PostgreSQL {number} answers", supported.is_newer(number)
            said += f"; epochline was tried on {supported} alone" if newer else ""
            answers = Check(check="postgresql", subject=name, outcome="warning" if newer else "ok", said=said)
            found = [answers, *_inside(opened, name, pipelines)]
    except EpochlineError as error:
        given = parse_dsn(divided(dsn)[0])
        wanted = given.get("dbname")
        # libpq gives no code for an error at connect: only its text tells a missing database or right.
        if f'database "{wanted}" does not exist' in str(error):
            mend = f'CREATE DATABASE "{wanted}";'
        elif f'permission denied for database "{wanted}"' in str(error):
            mend = f'GRANT CONNECT ON DATABASE "{wanted}" TO "{given["user"]}";'
        yield _wrong(error, "postgresql", name, mend)
        yield from not_asked(_OF_LEDGER, name, "PostgreSQL was not reached")
        return
    yield from found


def _inside(opened: "Session", name: str, pipelines: Sequence[Pipeline]) -> Iterator[Check]:
    """What a database says of its ledger and of this login."""
    from psycopg2.errors import InsufficientPrivilege

    from epochline.cli import database
    from epochline.postgres.ledger.migrate import changed_definitions, current_revision
    from epochline.postgres.queries.statements import run
    from epochline.postgres.queries.versions import head_revision, opening, refuse_version

    about: dict[str, Any] = {"check": "ledger", "subject": name}
    wanted = head_revision()
    there: str | None = ""
    of_ledger = Check(**about, outcome="not_asked", said="this login may not read it")
    with suppress(InsufficientPrivilege):
        there = current_revision(opened)
        said = f"at revision {there}; this code needs {wanted}" if there else "this database has none"
        of_ledger = Check(**about, outcome="wrong", said=said, mend="epochline migrate")
        if there == wanted and (changed := changed_definitions(opened)):
            said = f"at revision {there}, with {' and '.join(changed)} of another version"
            of_ledger = Check(**about, outcome="wrong", said=said, mend="epochline migrate")
        elif there == wanted:
            of_ledger = Check(**about, said=f"at revision {there}")
        elif there is not None and there > wanted:
            _, (versions,) = database.execute(opened, opening({}))
            try:
                refuse_version(versions)
                of_ledger = Check(**about, said=f"{said}, and may work on it")
            except VersionError as error:
                newer = f"install epochline {versions[-1]} or newer, and restart every process"
                of_ledger = _wrong(error, "ledger", name, newer)
    yield of_ledger
    yield _rights(opened, name, pipelines, there=there is not None)
    state = run(opened, "session_state").one()
    replica, about = "session_replication_role", {"subject": name}
    if state.replication_role == "replica":
        said = "replica: PostgreSQL enforces no foreign key and fires no trigger"
        yield Check(check=replica, **about, outcome="wrong", said=said, mend=reset(replica, state))
    else:
        yield Check(check=replica, **about, said=state.replication_role)
    if state.read_only:
        said = "sessions of this login may not write" + (": the server is a standby" if state.standby else "")
        mend = reset("default_transaction_read_only", state)
        if state.standby:
            mend = _correct(name, "host and port: they have to be the primary's")
        yield Check(check="read_only", **about, outcome="wrong", said=said, mend=mend)
    else:
        yield Check(check="read_only", **about, said="sessions may write")
    yield from database_settings.database_settings(opened, name, pipelines, state)


def _rights(opened: "Session", name: str, pipelines: Sequence[Pipeline], *, there: bool) -> Check:
    """Whether this login may run epochs, or make the ledger, and may make the missing targets."""
    from epochline.postgres.ledger import roles
    from epochline.postgres.queries.statements import run

    about: dict[str, Any] = {"check": "rights", "subject": name}
    left = roles.lacking(opened)
    if there and not run(opened, "may_run_epochs").scalar_one_or_none():
        said = f"login {opened.info.user} may not run epochs on this ledger"
        return Check(**about, outcome="wrong", said=said, mend=" ".join(left) or "epochline migrate")
    tables = [sink.table for one in pipelines for sink in one.tables if sink.columns is not None]
    try:
        roles.refuse_without_schemas(opened, tables, left, ledger=there)
    except RightsMissingError as error:
        return _wrong(error, **about)
    if there and left:
        said = "the roles of least privilege are incomplete; the pages in Airflow and a writer_connection need them"
        return Check(**about, outcome="warning", said=said, mend="epochline migrate")
    return Check(**about, said="may run epochs" if there else "may make the ledger")


def _targets(pipeline: Pipeline) -> Check:
    try:
        with connections.adapters().ledger(pipeline).transaction() as tx:
            tx.targets.inspect(pipeline)
            tx.targets.refuse_foreign(pipeline)
    except EpochlineError as error:
        return _wrong(error, "targets", pipeline.name)
    return Check(check="targets", subject=pipeline.name, said=", ".join(sink.table for sink in pipeline.tables))
