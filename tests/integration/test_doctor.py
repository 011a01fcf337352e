"""`epochline doctor` on real servers: an installation without a fault, and one fault for each of its checks."""

import json
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer
from psycopg2.extensions import parse_dsn
from sqlalchemy.engine import make_url

from epochline.cli import database_settings, kafka_settings
from epochline.config.versions import RANGES, Range
from epochline.kafka import source
from epochline.kafka.examined import Examined, ExaminedTopic
from epochline.local.jars import java_executable
from epochline.local.stack import Stack
from epochline.postgres.ledger import migrate
from tests.commands import Call, connect_to
from tests.databases import as_connection, query
from tests.e2e.own_servers import kafka
from tests.integration.kafka_topics import admin_of, configure, make_topic
from tests.integration.logins import AsSuperuser, Login, user
from tests.integration.people import Patch, declare

SECRET = "do-not-tell-9f2c"
INSTALLATION = "epochline.cli.installation"
AWAY = "127.0.0.1:1"
READ = "# Airflow reads this file\n"


@dataclass(frozen=True, slots=True)
class World:
    """A sound installation, and what a fault changes in it."""

    call: Call
    folder: Path
    dsn: str
    kafka: str
    topic: str
    patch: Patch
    """What a fault patches: to undo it is to mend the fault, unless it says otherwise."""
    login: Login
    as_superuser: AsSuperuser

    def connect(self, dsn: str) -> str:
        connect_to(self.patch, postgres=dsn)
        return dsn

    def programs(self, *names: str) -> None:
        """Put these programs on PATH, and no others."""
        places = {"java": java_executable(), "spark-submit": Path(sysconfig.get_path("scripts"), "spark-submit")}
        folder = self.folder / "bin"
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(places[name])
        self.patch.delenv("JAVA_HOME", raising=False)
        self.patch.setenv("PATH", str(folder))

    def checks(self) -> dict[str, dict[str, Any]]:
        """The checks by name; by name and subject where there are several of one kind."""
        answer = json.loads(self.call("doctor", "--json")[1])
        return {name: one for one in answer["checks"] for name in (one["check"], f"{one['check']} {one['subject']}")}

    def declare(self, topic: str = "", **declared: str) -> None:
        declare(self.folder, topic or self.topic, **declared)
        file = self.folder / "people.py"
        file.write_text(READ + file.read_text())

    def shell(self, command: str) -> str:
        return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def world(
    call: Call, people_topic: str, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path, monkeypatch: Patch,
    login: Login, as_superuser: AsSuperuser,
) -> Iterator[World]:  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "no stack"))
    monkeypatch.setenv("PATH", f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(source, "_PATIENCE_SECONDS", 1)
    with pytest.MonkeyPatch.context() as patch:
        made = World(call, tmp_path, postgres_dsn, kafka_bootstrap, people_topic, patch, login, as_superuser)
        made.declare()
        call.shown("migrate")
        yield made


def test_a_sound_installation_is_green_and_the_same_for_people_and_programs(world: World) -> None:
    before = everything(world)

    code, out, err = world.call("doctor")
    told = world.call.json("doctor")

    # The server of the tests writes nothing to disk at once.
    warned = [line.partition(":")[0] for line in out.splitlines() if not line.startswith("ok  ")]
    assert warned == [f"warning   durability {POSTGRES}", "nothing is wrong"]
    assert code == 0
    assert told["healthy"] is True
    names = ["".join(filter(None, (one["check"], one["subject"] and f" {one['subject']}"))) for one in told["checks"]]
    assert [line[10:].partition(": ")[0] for line in out.splitlines()[:-1]] == names
    assert [sorted(one) for one in told["checks"]] == [["check", "mend", "outcome", "said", "subject"]] * len(names)
    assert f"{world.topic}: 2 partitions" in out
    assert "cluster " in out
    asked = {"PostgreSQL of epochline_postgres": 10, "Kafka of epochline_kafka": 15}
    assert err.splitlines() == [f"asking {what}, for at most {most} seconds …" for what, most in asked.items()]
    assert str(parse_dsn(world.dsn)["password"]) not in out + err
    assert everything(world) == before


def everything(world: World) -> Any:
    """What a command could have changed."""
    with admin_of(world.kafka) as admin:
        topics = sorted(topic["name"] for topic in admin.describe_topics())
    relations = "SELECT array_agg(oid::regclass::text ORDER BY oid) FROM pg_class WHERE relkind = 'r'"
    return topics, query(world.dsn, relations), query(world.dsn, "SELECT * FROM epochline.pipeline")


def test_a_new_installation_without_pipelines_is_asked_for_its_default_connections(
    world: World, new_empty: str
) -> None:
    world.connect(new_empty)
    (world.folder / "people.py").unlink()

    code, out, _ = world.call("doctor")

    assert code == 1
    assert f"no file in {world.folder} declares a pipeline. To mend it: epochline init NAME --topic TOPIC" in out
    assert "wrong     ledger epochline_postgres: this database has none. To mend it: epochline migrate" in out
    assert "ok        rights epochline_postgres: may make the ledger" in out
    assert query(new_empty, "SELECT to_regnamespace('epochline')") == [(None,)]
    for command in ("migrate", "doctor"):
        world.call.shown(command)


@pytest.fixture
def new_empty(postgres_dsn: str) -> str:
    """The test's database without its ledger."""
    query(postgres_dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")
    return postgres_dsn


def changed(dsn: str, **parts: Any) -> str:
    return make_url(dsn).set(**parts).render_as_string(hide_password=False)


Mend = Callable[[str], object]
"""Does what the line says: gets what follows "To mend it"."""


def no_such_database(world: World) -> Mend:
    world.connect(changed(world.dsn, database=f"nowhere_{world.topic}"))
    return world.as_superuser


def wrong_password(world: World) -> None:
    world.connect(changed(world.dsn, password=SECRET))


def no_connect(world: World) -> Mend:
    world.as_superuser(f"REVOKE CONNECT ON DATABASE {parse_dsn(world.dsn)['dbname']} FROM PUBLIC")
    world.connect(world.login("epochline_owner"))
    return world.as_superuser


def postgres_away(world: World) -> None:
    world.connect(changed(world.dsn, port=1))


def of_ours(world: World, command: str) -> None:
    program, *arguments = command.split()
    assert (program, world.call(*arguments)[0]) == ("epochline", 0)


def no_ledger(world: World) -> Mend:
    query(world.dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")
    return partial(of_ours, world)


def older_ledger(world: World) -> Mend:
    query(world.dsn, "DROP SCHEMA epochline, epochline_staging CASCADE; DROP TABLE people")
    with closing(psycopg2.connect(world.dsn)) as session, session:
        migrate.run_migrations(session, "0001")
    return partial(of_ours, world)


def newer_ledger(world: World) -> Mend:
    ((now,),) = query(world.dsn, "SELECT version_num FROM epochline.alembic_version")
    query(world.dsn, "UPDATE epochline.alembic_version SET version_num = '9999', oldest_version = '9.0.0'")
    return lambda _: query(
        world.dsn, "UPDATE epochline.alembic_version SET version_num = %s, oldest_version = '0.2.0'", now
    )


def other_views(world: World) -> Mend:
    query(world.dsn, "UPDATE epochline.definition SET sha256 = 'of another version' WHERE name = 'views'")
    return partial(of_ours, world)


def old_server(world: World) -> None:
    world.patch.setattr(migrate, "OLDEST_SERVER", 99)


def latin1(world: World) -> Mend:
    return of_encoding(world, "LATIN1")


def sql_ascii(world: World) -> Mend:
    return of_encoding(world, "SQL_ASCII")


def of_encoding(world: World, encoding: str) -> Mend:
    """An empty database; what the line says gives another one, in which `migrate` makes a ledger."""
    name = f'of "{encoding}" {world.topic}'
    made = f"CREATE DATABASE {database_settings.quoted(name)} OWNER epochline ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    world.as_superuser(made)
    dsn = world.connect(changed(world.dsn, database=name))

    def make(statement: str) -> None:
        refused = world.call.refusal("migrate")
        assert f"has the encoding {encoding}, and epochline needs UTF8" in refused
        assert statement in refused
        assert query(dsn, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'epochline%'") == []
        world.as_superuser(statement)
        world.connect(changed(world.dsn, database=f"{name}_utf8"))
        world.call.shown("migrate")

    return make


def no_target(world: World) -> Mend:
    query(world.dsn, "DROP TABLE people")
    return partial(of_ours, world)


def run_by(world: World, statements: str) -> None:
    world.as_superuser(*filter(None, (one.strip() for one in statements.split(";"))))


def no_rights(world: World) -> Mend:
    world.connect(world.login())
    return partial(run_by, world)


def replica(world: World) -> Mend:
    login = user(world.connect(world.login("epochline_owner")))
    world.as_superuser(f"ALTER ROLE {login} SET session_replication_role = replica")
    return partial(run_by, world)


def read_only(world: World) -> Mend:
    world.as_superuser(f"ALTER DATABASE {parse_dsn(world.dsn)['dbname']} SET default_transaction_read_only = on")
    return partial(run_by, world)


def writer_not_fenced(world: World) -> Mend:
    world.declare(more='writer_connection="epochline_writer",')
    world.patch.setenv("AIRFLOW_CONN_EPOCHLINE_WRITER", as_connection(world.login("epochline_writer")))
    return partial(run_by, world)


def no_topic(world: World) -> Mend:
    name = f"{world.topic}-new"
    world.declare(name)

    def create(command: str) -> None:
        assert command == f"kafka-topics.sh --bootstrap-server HOST:9092 --create --partitions 1 --topic {name}"
        make_topic(world.kafka, name)

    return create


def forgotten_by_its_producer(world: World) -> Mend:
    world.patch.setattr(kafka_settings, "OPEN_FOR", timedelta())
    name = f"of '{world.topic}'"

    def start() -> Producer:
        options = {"bootstrap.servers": world.kafka, "transactional.id": name, "transaction.timeout.ms": 600_000}
        producer = Producer(options)
        producer.init_transactions()
        return producer

    producer = start()
    producer.begin_transaction()
    producer.produce(world.topic, b"open", partition=1)
    producer.flush(30)
    held = f"{world.topic}-1: an open transaction holds back offsets [0, 1); it began at offset 0, by producer "
    assert f"people: caught up. {held}" in world.call.shown("lag", "people")
    assert {one["reason"][: len(held)] for one in world.call.json("lag", "people")} == {held}

    def start_again(mend: str) -> None:
        assert mend == f"start the producer of {name!r} again, which ends it"
        start()
        assert {one["reason"] for one in world.call.json("lag", "people")} == {None}

    return start_again


def kafka_away(world: World) -> None:
    connect_to(world.patch, kafka=AWAY)


def no_connection(world: World) -> Mend:
    world.patch.delenv("AIRFLOW_CONN_EPOCHLINE_KAFKA")

    def export(command: str) -> None:
        value = world.shell(f'{command}; echo "$AIRFLOW_CONN_EPOCHLINE_KAFKA"').replace("HOST:9092", world.kafka)
        world.patch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", value)

    return export


def unreadable_connection(world: World) -> None:
    world.patch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", f'{{"password": "{SECRET}", ')


def broken_declaration(world: World) -> Mend:
    file = world.folder / "broken.py"
    file.write_text(f"{READ}from epochline import KafkaSource, epoch_dag\nKafkaSource(subject='a')\n")
    return lambda _: file.unlink()


def without_the_word(world: World) -> Mend:
    declare(world.folder, world.topic)
    return world.shell


def no_folder(world: World) -> None:
    world.patch.setenv("EPOCHLINE_DAGS", str(world.folder / "nowhere"))


def no_settings(world: World) -> None:
    world.patch.setenv("EPOCHLINE_SETTINGS", str(world.folder / "none.toml"))


def no_java(world: World) -> Mend:
    java = java_executable()
    world.programs("spark-submit")
    return lambda _: world.patch.setenv("JAVA_HOME", str(java.resolve().parents[1]))


def no_spark_submit(world: World) -> Mend:
    world.programs("java")
    return lambda command: world.patch.setenv("PATH", world.shell(f'{command}; echo "$PATH"'))


def installs(world: World, package: str, other: str | None) -> None:
    def found(name: str) -> str:
        if name == package and other is None:
            raise PackageNotFoundError(name)
        return str(other) if name == package else version(name)

    world.patch.setattr(f"{INSTALLATION}.version", found)


def old_package(world: World) -> None:
    installs(world, "typer", "0.1")


def no_extra(world: World) -> None:
    installs(world, "pgpq", None)


def other_client(world: World) -> None:
    installs(world, "pyspark-client", "4.1.3")


def no_entry_points(world: World) -> None:
    world.patch.setattr(f"{INSTALLATION}.entry_points", lambda group: ())


def of_login(world: World, statement: str) -> Mend:
    login = user(world.connect(world.login("epochline_owner")))
    world.as_superuser(f"ALTER ROLE {login} {statement}")
    return partial(run_by, world)


def statements_end(world: World) -> Mend:
    return of_login(world, "SET statement_timeout = '1min'")


def transactions_end(world: World) -> Mend:
    world.as_superuser(f"ALTER DATABASE {parse_dsn(world.dsn)['dbname']} SET transaction_timeout = '90s'")
    return partial(run_by, world)


def writers_statements_end(world: World) -> Mend:
    dsn = world.login("epochline_writer")
    world.as_superuser(f"GRANT {user(dsn)} TO epochline_owner", f"ALTER ROLE {user(dsn)} SET statement_timeout = '2s'")
    world.declare(more='writer_connection="epochline_writer",')
    world.patch.setenv("AIRFLOW_CONN_EPOCHLINE_WRITER", as_connection(dsn))
    return partial(run_by, world)


def few_sessions(world: World) -> Mend:
    return of_login(world, "CONNECTION LIMIT 4")


def few_sessions_of_database(world: World) -> Mend:
    name = parse_dsn(world.dsn)["dbname"]
    world.as_superuser(f"ALTER DATABASE {name} CONNECTION LIMIT 4")
    return partial(run_by, world)


def forgotten_transaction(world: World) -> Mend:
    world.patch.setattr("epochline.cli.database_settings.PREPARED_SECONDS", 0)
    with closing(psycopg2.connect(world.dsn)) as session:
        session.autocommit = True
        session.cursor().execute("BEGIN; UPDATE people SET id = id; PREPARE TRANSACTION 'for''gotten'")
    return partial(run_by, world)


def published_staging(world: World) -> Mend:
    world.as_superuser('CREATE PUBLICATION "of all" FOR ALL TABLES')
    return partial(run_by, world)


def published_schema(world: World) -> Mend:
    world.as_superuser("CREATE PUBLICATION staged FOR TABLES IN SCHEMA epochline_staging, public")
    return partial(run_by, world)


def idle_slot(world: World) -> Mend:
    world.as_superuser("SELECT pg_create_physical_replication_slot('nobody_reads', true)")
    return partial(run_by, world)


def wrong_clock(world: World) -> None:
    late = SimpleNamespace(time=lambda: time.time() - 3600)
    world.patch.setattr("epochline.cli.machine.time", late)


def full_disk(world: World) -> None:
    """A file system without any room."""
    world.patch.setenv("SPARK_LOCAL_DIRS", "/proc")


def configured(world: World, topic: str, **settings: str) -> Mend:
    configure(world.kafka, topic, **settings)

    def alter(commands: str) -> None:
        for command in commands.split(" && "):
            start, _, rest = command.partition(" --entity-name ")
            assert start == "kafka-configs.sh --bootstrap-server HOST:9092 --alter --entity-type topics"
            name, _, setting = rest.partition(" --add-config ")
            key, _, value = setting.partition("=")
            configure(world.kafka, name, **{key: value})

    return alter


def short_retention(world: World) -> Mend:
    return configured(world, world.topic, **{"retention.ms": "3600000"})


def retention_below_the_schedule(world: World) -> Mend:
    world.declare(more='schedule=__import__("datetime").timedelta(hours=3),')
    return configured(world, world.topic, **{"retention.ms": "3600000"})


def too_few_in_sync(world: World) -> Mend:
    return configured(world, world.topic, **{"min.insync.replicas": "2"})


def unclean_leaders(world: World) -> Mend:
    return configured(world, world.topic, **{"unclean.leader.election.enable": "true"})


def small_records(world: World) -> Mend:
    sent = f"{world.topic}-out"
    make_topic(world.kafka, sent)
    world.declare(table=f'), KafkaTopic(topic="{sent}", value=Json(columns={{"id": "bigint"}})')
    world.call.shown("migrate")
    return configured(world, sent, **{"max.message.bytes": "2000"})


def short_transactions(world: World) -> Mend:
    sent = f"{world.topic}-out"
    make_topic(world.kafka, sent)

    def declare(seconds: int) -> None:
        sink = f'KafkaTopic(topic="{sent}", transaction_timeout={seconds}, value=Json(columns={{"id": "bigint"}})'
        restart = "settings=epochline.Settings(restart=epochline.FixedDelay(attempts=9, delay=30)),"
        world.declare(table=f"), {sink}", more=restart)
        file = world.folder / "people.py"
        file.write_text(f"import epochline\n{file.read_text()}")

    declare(60)
    world.call.shown("migrate")
    return lambda _: declare(600)


def own_airflow(world: World) -> str:
    """An Airflow's database, which has a login without any time-out, and Airflow's own defaults; the login."""
    dsn = world.login()
    world.patch.setenv("AIRFLOW_HOME", str(world.folder))
    url = make_url(dsn).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
    world.patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", url)
    return user(dsn)


def late_airflow(world: World) -> Mend:
    own_airflow(world)

    def export(command: str) -> None:
        for variable in command.replace("export ", "").split():
            name, _, value = variable.partition("=")
            world.patch.setenv(name, value)

    return export


def endless_transactions_of_airflow(world: World) -> Mend:
    own_airflow(world)
    return partial(run_by, world)


POSTGRES = "epochline_postgres"
CORRECT = "in AIRFLOW_CONN_EPOCHLINE_POSTGRES, correct host, port, login and password"
FAULTS: Mapping[Callable[[World], Mend | None], tuple[str, str, str]] = {
    old_package: ("packages", "typer>=0.20 is needed, 0.1 is installed", "-m pip install 'typer>=0.20'"),
    no_extra: ("packages spark", "pgpq<0.13,>=0.12 is needed, none is installed", "make setup"),
    other_client: ("packages spark", "pyspark-client 4.1.3 share files", "pyspark==4.1.3 pyspark-client==4.1.3"),
    no_java: ("java", "no `java` was found on PATH. Spark 4.2 needs Java 17 or 21.", "or set JAVA_HOME"),
    no_spark_submit: ("spark-submit", "there is no spark-submit on PATH", "export PATH="),
    no_folder: ("declarations", "there is no folder", "export EPOCHLINE_DAGS="),
    broken_declaration: ("declaration", "broken.py:3: ", "`epochline validate` checks it"),
    without_the_word: ("safe_mode", 'does not contain the word "airflow"', "echo '# read by Airflow' >> "),
    no_settings: ("settings", "which does not exist", "unset EPOCHLINE_SETTINGS"),
    no_connection: ("connection epochline_kafka", "is not known here. Asked: the embedded stack", "export AIRFLOW_CONN_EPOCHLINE_KAFKA='{"),
    unreadable_connection: (f"connection {POSTGRES}", "cannot be understood", f"export AIRFLOW_CONN_{POSTGRES.upper()}="),
    no_such_database: (f"postgresql {POSTGRES}", "does not exist", 'CREATE DATABASE "nowhere_'),
    wrong_password: (f"postgresql {POSTGRES}", "password authentication failed", CORRECT),
    no_connect: (f"postgresql {POSTGRES}", "permission denied for database", "GRANT CONNECT ON DATABASE "),
    postgres_away: (f"postgresql {POSTGRES}", "cannot be reached", CORRECT),
    no_ledger: (f"ledger {POSTGRES}", "this database has none", "epochline migrate"),
    newer_ledger: (f"ledger {POSTGRES}", "at revision 9999 and allows epochline 9.0.0 and newer; this is ", "install epochline 9.0.0 or newer"),
    other_views: (f"ledger {POSTGRES}", "with views of another version", "epochline migrate"),
    latin1: (f"postgresql {POSTGRES}", "has the encoding LATIN1, and epochline needs UTF8", "CREATE DATABASE "),
    sql_ascii: (f"postgresql {POSTGRES}", "has the encoding SQL_ASCII, and epochline needs UTF8", "CREATE DATABASE "),
    old_server: (f"postgresql {POSTGRES}", "epochline needs 99 or newer", "upgrade the server"),
    older_ledger: (f"ledger {POSTGRES}", "at revision 0001; this code needs ", "epochline migrate"),
    no_rights: (f"rights {POSTGRES}", "may not run epochs on this ledger", 'GRANT "epochline_owner" TO "login_'),
    replica: (f"session_replication_role {POSTGRES}", "fires no trigger", 'RESET session_replication_role;'),
    read_only: (f"read_only {POSTGRES}", "may not write", "RESET default_transaction_read_only;"),
    no_target: ("targets people", "target people does not exist", "epochline migrate"),
    writer_not_fenced: ("writer epochline_writer", "may not end sessions", " TO epochline_owner;"),
    kafka_away: ("kafka epochline_kafka", "does not answer", "in AIRFLOW_CONN_EPOCHLINE_KAFKA, correct bootstrap.servers"),
    forgotten_by_its_producer: ("source people", "with a time-out of 10 min", "again, which ends it"),
    no_topic: ("source people", "Kafka has no topic", "kafka-topics.sh "),
    statements_end: (f"time_limits {POSTGRES}", "statement_timeout is 1 min: the server ends a larger epoch", "RESET statement_timeout;"),
    transactions_end: (f"time_limits {POSTGRES}", "transaction_timeout is 1 min 30 s", "RESET transaction_timeout;"),
    writers_statements_end: ("time_limits epochline_writer", "statement_timeout is 2 s", "RESET statement_timeout;"),
    few_sessions: (f"sessions {POSTGRES}", "3 sessions free, and an epoch of people needs 4", "CONNECTION LIMIT 5;"),
    few_sessions_of_database: (f"sessions {POSTGRES}", "3 sessions free, and an epoch of people needs 4", "CONNECTION LIMIT 5;"),
    forgotten_transaction: (f"prepared_transactions {POSTGRES}", "prepared and never ended: 'for''gotten'", "ROLLBACK PREPARED 'for''gotten';"),
    published_staging: (f"publications {POSTGRES}", '"of all": ships each staged row', 'DROP PUBLICATION "of all"; CREATE PUBLICATION "of all" FOR TABLES IN SCHEMA public;'),
    published_schema: (f"publications {POSTGRES}", "staged: ships each staged row", "ALTER PUBLICATION staged DROP TABLES IN SCHEMA epochline_staging;"),
    idle_slot: (f"replication_slots {POSTGRES}", "without a reader: 'nobody_reads' keeps ", "SELECT pg_drop_replication_slot('nobody_reads');"),
    wrong_clock: ("clock epochline_kafka", "1 h ahead of this machine's: ages", "timedatectl set-ntp true"),
    full_disk: ("disk /proc", "0 B free: an epoch that sorts or joins more fails", "export SPARK_LOCAL_DIRS="),
    short_retention: ("retention people", " keeps records for 1 h: a pipeline that stands for so long loses records", "retention.ms=604800000"),
    retention_below_the_schedule: ("retention people", " keeps records for 1 h, and is read every 3 h: records go unread", "retention.ms=604800000"),
    too_few_in_sync: ("replicas epochline_kafka", "1 in sync, min.insync.replicas 2; Kafka refuses records", "min.insync.replicas=1"),
    unclean_leaders: ("broker_settings epochline_kafka", "a lost broker takes read records along", "unclean.leader.election.enable=false"),
    small_records: ("record_size people kafka:", "and records that are read have up to 32 MiB", "max.message.bytes=33554432"),
    short_transactions: ("sink people kafka:", "transaction_timeout is 1 min, the restart strategy may wait 4 min 30 s", "raise transaction_timeout of kafka:"),
    late_airflow: ("airflow_time_outs", "task_instance_heartbeat_timeout is 5 min: a task whose worker was killed", "export AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT=60 "),
    endless_transactions_of_airflow: ("airflow_database", "idle_in_transaction_session_timeout of the login login_", "SET idle_in_transaction_session_timeout = '30s';"),
    no_entry_points: ("airflow", "does not find the plugin and the provider", "-m pip install --force-reinstall"),
}  # fmt: skip


WARNINGS = frozenset(
    {
        without_the_word, statements_end, transactions_end, writers_statements_end, forgotten_transaction,
        published_staging, published_schema, idle_slot, wrong_clock, full_disk, short_retention, unclean_leaders,
        small_records, short_transactions, late_airflow, endless_transactions_of_airflow,
        forgotten_by_its_producer,
    }
)  # fmt: skip
"""With these alone, the exit code is 0."""


SLOW = (late_airflow, endless_transactions_of_airflow, sql_ascii)
"""A process imports Airflow three times; another encoding stands for this one."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW), id=one.__name__) for one in FAULTS],
)
def test_a_fault_is_named_with_what_mends_it_and_is_green_afterwards(
    fault: Callable[[World], Mend | None], world: World
) -> None:
    """K21, SEC-4: whatever is wrong, no password is shown."""
    check, said, mend = FAULTS[fault]
    do = fault(world) or (lambda _: world.patch.undo())

    code, out, err = world.call("doctor")
    asked = world.checks()

    [line] = [line for line in out.splitlines() if not line.startswith(("ok ", "not asked ")) and f" {check}" in line]
    before, _, printed = line.partition(" To mend it: ")
    assert said in before
    assert mend in printed
    warns = fault in WARNINGS
    assert (code, line.split()[0]) == ((0, "warning") if warns else (1, "wrong"))
    assert sum(line.startswith("wrong") for line in out.splitlines()) == (not warns)
    shown = out + err + json.dumps(asked)
    assert [secret for secret in (SECRET, str(parse_dsn(world.dsn)["password"])) if secret in shown] == []
    do(printed)
    after = world.checks()
    found = next(
        (one for name, one in after.items() if name == check or (check[-1] == ":" and name.startswith(check))), None
    )
    gone = (broken_declaration, without_the_word, full_disk)
    assert found is None if fault in gone else found is not None and found["outcome"] == "ok"


def test_a_postgresql_that_is_newer_than_any_that_was_tried_is_a_warning(world: World) -> None:
    world.patch.setitem(RANGES, "PostgreSQL", Range("16", "17"))

    answers = world.checks()["postgresql"]

    assert answers["outcome"] == "warning"
    assert answers["said"].endswith("answers; epochline was tried on 16 to 17 alone")
    assert world.call("doctor")[0] == 0


def test_a_login_that_may_not_make_the_ledger_is_told_what_a_dba_has_to_run(world: World, new_empty: str) -> None:
    query(new_empty, "DROP TABLE people")
    world.connect(world.login())

    rights = world.checks()["rights"]
    world.as_superuser(rights["mend"])

    assert rights["outcome"] == "wrong"
    assert "may not make tables in epochline, epochline_staging, public" in rights["said"]
    for command in ("migrate", "doctor"):
        world.call.shown(command)


def test_a_sink_that_would_refuse_an_epoch_says_why_and_its_outbox_is_made_by_migrate(world: World) -> None:
    absent = f"{world.topic}-out"
    world.declare(table=f'), KafkaTopic(topic="{absent}", value=Json(columns={{"id": "bigint"}})')

    before = world.checks()
    of_ours(world, before["targets"]["mend"])
    make_topic(world.kafka, absent)

    assert [before[name]["outcome"] for name in ("targets", "sink")] == ["wrong", "wrong"]
    assert f"kafka-topics.sh --create --topic {absent} --partitions N" in before["sink"]["said"]
    assert [world.checks()[name]["outcome"] for name in ("targets", "sink")] == ["ok", "ok"]


def test_connections_of_the_embedded_stack_are_told_from_those_of_the_environment(world: World, stack: Stack) -> None:
    world.patch.setenv("EPOCHLINE_HOME", str(stack.home.root))
    world.patch.delenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES")

    checks = world.checks()

    assert checks[f"connection {POSTGRES}"]["said"] == f"PostgreSQL: from the embedded stack in {stack.home}"
    assert checks["connection epochline_kafka"]["said"] == "Kafka: from AIRFLOW_CONN_EPOCHLINE_KAFKA"
    assert checks["postgresql"]["outcome"] == "ok"


def test_what_depends_on_a_failed_check_is_not_asked(world: World) -> None:
    wrong_password(world)
    connect_to(world.patch, kafka=AWAY)

    asked = world.checks()

    missed = [name for name, one in asked.items() if one["outcome"] == "not_asked" and name == one["check"]]
    of_kafka = [name for name in kafka_settings.OF_SETTINGS if name not in database_settings.OF_SETTINGS]
    assert missed == [
        "ledger", "rights", "session_replication_role", "read_only", *database_settings.OF_SETTINGS, "targets", *of_kafka,
        "source",
    ]  # fmt: skip


def test_a_spark_connect_server_needs_no_spark_submit_and_an_unknown_connection_is_a_warning(world: World) -> None:
    world.programs()

    world.patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark-connect://127.0.0.1:15002")
    served = world.checks()
    world.patch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    code, out, _ = world.call("doctor")

    assert [served[name]["outcome"] for name in ("java", "spark-submit")] == ["warning", "ok"]
    assert "warning   spark-submit: there is no spark-submit on PATH" in out
    assert "To mend it: export AIRFLOW_CONN_SPARK_DEFAULT='{" in out
    assert code == 1  # Java is needed by everything but a Spark Connect server.
    assert shutil.which("java") is None


def test_a_secret_of_kafka_is_not_shown(world: World) -> None:
    """K21, SEC-4."""
    extra = {"bootstrap.servers": AWAY, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    extra |= {"sasl.username": "somebody", "sasl.password": SECRET}
    shown = []

    for given in (extra, extra | {"security.protocol": "PLAINTEXT"}, extra | {"unknown": SECRET}):
        world.patch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", json.dumps({"conn_type": "kafka", "extra": given}))
        shown.append(world.call("doctor"))

    assert [code for code, _, _ in shown] == [1, 1, 1]
    assert SECRET not in json.dumps(shown)


@pytest.mark.slow
def test_a_broker_with_kafkas_own_defaults_is_warned_of_topics_that_make_themselves(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "broker").mkdir()
    with kafka(tmp_path / "broker") as port:
        connect_to(world.patch, kafka=f"127.0.0.1:{port}")
        make_topic(f"127.0.0.1:{port}", world.topic)

        asked = world.checks()

    found = asked["broker_settings"]
    assert found["outcome"] == "warning"
    assert found["said"].startswith("auto.create.topics.enable: a mistyped or deleted topic comes back empty")
    assert found["mend"] == "in each broker's server.properties: auto.create.topics.enable=false"
    assert asked["retention"]["said"] == f"{world.topic} keeps records for 7 d"
    assert asked["clock epochline_kafka"]["outcome"] == "ok"


def topic_of(*, replicas: int, in_sync: int, least: int) -> ExaminedTopic:
    return ExaminedTopic(replicas=replicas, in_sync=in_sync, settings={"min.insync.replicas": str(least)})


@pytest.mark.parametrize(
    ("topic", "outcome", "said"),
    [
        (topic_of(replicas=3, in_sync=3, least=2), "ok", "all in sync on 3 brokers"),
        (
            topic_of(replicas=3, in_sync=1, least=2),
            "wrong",
            "t: 1 in sync, min.insync.replicas 2; Kafka refuses records",
        ),
        (topic_of(replicas=1, in_sync=1, least=1), "warning", "t: one replica on 3 brokers"),
        (topic_of(replicas=3, in_sync=3, least=1), "warning", "t: min.insync.replicas is 1"),
    ],
    ids=["safe", "stuck", "one replica", "one is enough"],
)
def test_replicas_of_several_brokers_are_judged_by_how_many_have_to_be_in_sync(
    topic: ExaminedTopic, outcome: str, said: str
) -> None:
    """By what a cluster of three brokers answers; the tests' clusters have one."""
    found = Examined(brokers=3, settings={}, topics={"t": topic}, clock=None)

    [check] = [one for one in kafka_settings.kafka_settings("k", found, ()) if one.check == "replicas"]

    assert (check.outcome, check.said[: len(said)]) == (outcome, said)
