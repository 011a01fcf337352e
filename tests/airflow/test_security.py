"""What a trigger cannot smuggle in, and a whole epoch's secrets looked for wherever they could show."""

import json
import os
import re
import stat
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from psycopg2 import sql

from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import let_go
from tests.airflow.interpreter import answer_of
from tests.conftest import AIRFLOW_DAGS
from tests.crash.reliability import Recovery
from tests.databases import query
from tests.integration.expiring import Expiring
from tests.integration.logins import Login, execute, login, superuser

__all__ = ["login"]

PIPELINE = "canary"
RECORD = f"record-canary-{uuid.uuid4()}"  # not in any source or log of another run
RECORDS = {0: [f"{RECORD}-{i}" for i in range(5)], 1: ["wait canary-may-go"], 2: [], 3: [f"{RECORD}-5"]}
NOTE = "{{ conn.epochline_postgres.password }} {{ var.value.x }} {% raw %} %s '; DROP TABLE epochline.epoch; --"
Conf = dict[str, Any]


@pytest.fixture(scope="module")
def ready(scheduler: Scheduler) -> Scheduler:
    scheduler.prepare(PIPELINE, RECORDS)
    return scheduler


NO_KEY, NO_ACTION = "no run may set|cannot be set for one run", "names no action that is an epoch|invalid parameters"
REFUSALS: dict[str, tuple[Conf, str]] = {
    # Keys that no run may set: Airflow takes any.
    "spark_conf": ({"spark_conf": {"spark.jars.packages": "evil:evil:1"}}, NO_KEY),
    "conf": ({"conf": {"spark.driver.extraJavaOptions": "-Dx"}, "note": "x"}, NO_KEY),
    "jars": ({"jars": "/evil.jar"}, NO_KEY),
    "kafka": ({"kafka": {"sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;"}}, NO_KEY),
    "bootstrap.servers": ({"bootstrap.servers": "evil:9092"}, NO_KEY),
    "postgres_connection": ({"postgres_connection": "other"}, NO_KEY),
    "a template": ({"{{ var.value.x }}": 1}, NO_KEY),
    # The one key next to the params, by which operators' DAGs order epochs.
    "no mapping": ({"action": "evil"}, NO_ACTION),
    "no action": ({"action": {"name": "evil"}}, NO_ACTION),
    "an action that is no epoch": ({"action": {"name": "pause", "reason": "evil"}}, NO_ACTION),
    "no such parameter": ({"action": {"name": "requeue", "parameters": {"jars": "evil"}, "reason": "x"}}, NO_ACTION),
    "no place": ({"action": {"name": "extend-back", "parameters": {"to": "evil"}, "reason": "x"}}, NO_ACTION),
    "no parameters": ({"action": {"name": "requeue", "parameters": "evil", "reason": "x"}}, NO_ACTION),
}

EXECUTE = """
import json, runpy, sys, traceback
from types import SimpleNamespace

task = runpy.run_path(sys.argv[1])["canary"].get_task("plan_epoch")
refused, shown = {}, []
for name, conf in json.load(sys.stdin).items():
    run = SimpleNamespace(conf=conf, run_id="r", dag_id="canary", triggering_user_name="admin")
    try:
        ti = SimpleNamespace(xcom_push=lambda key, value: shown.append(value))
        task.execute({"dag_run": run, "run_id": "r", "ti": ti})
    except Exception as error:
        refused[name] = [type(error).__name__, str(error), "".join([*traceback.format_exception(error), *shown])]
print("ANSWER" + json.dumps(refused))
"""


def test_a_plan_refuses_each_conf_that_is_not_on_the_list_and_writes_nothing(ready: Scheduler) -> None:
    """SEC-2: naming the key and never its value. Airflow tries a task no more that raises AirflowFailException."""
    refused = answer_of(
        EXECUTE, AIRFLOW_DAGS / "canary.py",
        environment={**os.environ, **ready.stack.airflow.environment()},
        given={name: conf for name, (conf, _) in REFUSALS.items()},
    )  # fmt: skip

    for name, (_, reason) in REFUSALS.items():
        kind, message, trace = refused[name]
        assert kind == "AirflowFailException", name
        assert re.search(reason, message), name
        assert reason is not NO_ACTION or "no epoch · action refused · the log of plan_epoch says what to do" in trace
        assert "evil" not in message + trace, name
    assert epochs(ready) == 0


@pytest.mark.parametrize("name", ["spark_conf", "no such parameter"])
def test_a_trigger_with_a_conf_that_is_not_on_the_list_fails_at_once(ready: Scheduler, name: str) -> None:
    """SEC-2, through the scheduler: the run is red after one try, and the log has the reason without the value."""
    conf, reason = REFUSALS[name]

    run = ready.trigger(PIPELINE, **conf)

    assert ready.wait(PIPELINE, run) == "failed"
    log = ready.log(PIPELINE, run, "plan_epoch")
    assert re.search(reason, log)
    assert "evil" not in log
    assert ready.instances(PIPELINE, run)["plan_epoch"]["try_number"] == 1
    assert epochs(ready) == 0


def epochs(scheduler: Scheduler) -> int:
    return scheduler.count("SELECT count(*) FROM epochline.epochs WHERE pipeline = %s", PIPELINE)


def test_a_value_that_is_not_of_its_params_schema_starts_no_run(ready: Scheduler) -> None:
    """SEC-1, SEC-2."""
    wrong = {"record_limit": ("{{ 1 }}", "1; DROP TABLE x", 0), "note": ("x" * 501, {"a": 1})}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(AssertionError, match="400"):
                ready.trigger(PIPELINE, **{name: value})


def test_no_secret_shows_anywhere_during_a_whole_epoch(ready: Scheduler) -> None:
    """SEC-4, SEC-5, SEC-8: arguments, job's environment, UI, event log, logs, databases, files.

    Every password and key of the stack is looked for: what a canary would be planted for is there already.
    """
    secrets = json.loads(ready.stack.home.secrets.read_text())
    del secrets["kafka_cluster_id"]
    # A task that an earlier test killed could take nothing away; what it left is its owner's alone.
    left = set(Path(tempfile.gettempdir()).glob("epochline-job-*/credentials.json"))

    run, places = shown_by_an_epoch(ready, PIPELINE, note=NOTE)

    tasks = f"/api/v2/dags/{PIPELINE}/dagRuns/{run}/taskInstances"
    passed_on = ready.call("GET", f"{tasks}/~/xcomEntries")["xcom_entries"]
    assert sorted((entry["task_id"], entry["key"]) for entry in passed_on) == [
        ("abort_epoch", "outcome"), ("commit_epoch", "outcome"), ("plan_epoch", "return_value"),
    ]  # fmt: skip
    assert ready.call("GET", f"{tasks}/plan_epoch/xcomEntries/return_value")["value"] == "1"
    for task in ("commit_epoch", "abort_epoch"):
        assert re.fullmatch(
            r"epoch 1 · [^·]+ of \d partitions? · [\d,]+ rows · committed", ready.outcome(PIPELINE, run, task)
        )
    noted = ready.query("SELECT note FROM epochline.epoch WHERE pipeline = %s AND state = 'COMMITTED'", PIPELINE)
    assert noted == [(NOTE,)]

    # The job's own login came by a file, so not even that is in what it inherited.
    found = {(name, place) for place, text in places.items() for name, secret in secrets.items() if secret in text}
    assert found == set()
    # Records are rows and quarantine; nothing else repeats them.
    assert {place for place, text in places.items() if RECORD in text} == set()
    assert set(Path(tempfile.gettempdir()).glob("epochline-job-*/credentials.json")) <= left


@pytest.fixture
def postgres_dsn(scheduler: Scheduler) -> str:
    """The database in which `login` makes logins: Airflow's tasks work there."""
    return scheduler.stack.postgres.dsn()


@pytest.fixture
def expiring(scheduler: Scheduler, login: Login, postgres_dsn: str, tmp_path: Path) -> Iterator[dict[str, Expiring]]:
    """Connections in Airflow's database: of an owner and of a writer, whose passwords live seven seconds."""
    admin = superuser(scheduler.stack, postgres_dsn)
    made = {
        f"expiring_{kind}": Expiring(login(f"epochline_{kind}"), admin, tmp_path / kind, 4)
        for kind in ("owner", "writer")
    }
    execute(admin, f"GRANT {made['expiring_writer'].login} TO epochline_owner")
    for name, one in made.items():
        held = {**one.connection, "extra": json.dumps(one.connection["extra"])}
        scheduler.call("POST", "/api/v2/connections", {"connection_id": name, "conn_type": "postgres", **held})
    yield made
    for name in made:
        scheduler.call("DELETE", f"/api/v2/connections/{name}")


@pytest.mark.slow
@pytest.mark.fault("F53")
@pytest.mark.parametrize("pipeline", ["expiring_by_submit", "expiring_by_connect"])
def test_an_epoch_of_airflow_outlasts_its_passwords_and_none_of_them_shows(
    scheduler: Scheduler, expiring: dict[str, Expiring], recovery: Recovery, pipeline: str
) -> None:
    """F53, K21, SEC-4: by spark-submit and on Spark's server; the connections of Airflow hold the command alone."""
    wait = f"wait {pipeline}-may-go"
    values = {p: [f"{RECORD}-{p}-{i}" for i in range(25)] + [wait] * (p == 0) for p in range(4)}
    scheduler.prepare(pipeline, values)

    def until_they_are_refused() -> None:
        first = {one: set(one.passwords) for one in expiring.values()}
        eventually("they are refused", lambda: not any(given & {*one.taken()} for one, given in first.items()), 60)
        recovery.last_fault()

    _, places = shown_by_an_epoch(scheduler, pipeline, until_they_are_refused)

    scheduler.assert_exact(pipeline, values)
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 1)
    recovery.took()
    given = [one.passwords for one in expiring.values()]
    assert min(map(len, given)) > 1
    # A URL would show the rest of it encoded.
    secrets = [RECORD, *(password.rpartition("+")[2] for passwords in given for password in passwords)]
    assert {place for place, text in places.items() if any(secret in text for secret in secrets)} == set()


def shown_by_an_epoch(
    scheduler: Scheduler, pipeline: str, meanwhile: Callable[[], None] = lambda: None, **conf: str
) -> tuple[str, dict[str, str]]:
    """Let a run commit an epoch that waits in its middle; the run, and by place all that showed of it.

    A job on Spark's server has neither UI nor event log.
    """
    began = time.time()
    server = scheduler.stack.spark.pid if pipeline == "expiring_by_connect" else None
    with watching_arguments() as arguments:
        run = scheduler.trigger(pipeline, **conf)
        # Not before: spark-submit asks a Java process of the same arguments how to start Java.
        eventually("the job writes", lambda: scheduler.sessions(pipeline), 120, every=0.05)
        if server is None:
            of_job = [driver := scheduler.driver(pipeline)]
            ports = eventually("Spark's UI listens", lambda: listening(driver), 60)
            assert {address for address, _ in ports} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
            ui = {"Spark's UI": eventually("Spark's UI answers", lambda: ui_of(ports), 60)}
            assert "spark.app.name" in ui["Spark's UI"]
        else:
            of_job, ui = [scheduler.client(pipeline), psutil.Process(server)], {}
        inherited = [environment_of(one) for top in of_job for one in [top, *top.children(recursive=True)]]
        meanwhile()
        let_go(scheduler, pipeline)
        assert scheduler.wait(pipeline, run) == "success", scheduler.log(pipeline, run, "pre_commit")
    logs = text_of(path for path in scheduler.stack.home.logs.rglob("*") if path.is_file())
    assert any(pipeline in one for one in arguments)
    assert any("EPOCHLINE_CREDENTIALS" in one for one in inherited)
    assert server is not None or "SparkListenerApplicationStart" in logs
    assert f"pipeline={pipeline}" in logs
    return run, ui | {
        "arguments of processes": "\n".join(arguments),
        "environment of Spark's processes": "\n".join(inherited),
        "logs, Spark's event log among them": logs,
        "rendered fields": json.dumps(scheduler.instances(pipeline, run)),
        "Airflow's database, XCom among it": dump(scheduler.stack.postgres.dsn("airflow"), "public"),
        "the ledger": dump(scheduler.stack.postgres.dsn(), "epochline"),
        "files that others may read": text_of(readable_by_others(began)),
    }


@contextmanager
def watching_arguments() -> Iterator[set[str]]:
    """Collects the arguments of every process of the machine, again and again until the block ends."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for pid in psutil.pids():
                with suppress(OSError):
                    seen.add(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def environment_of(process: psutil.Process) -> str:
    with suppress(OSError):
        # Others cannot read it: an environment is its owner's. A job is somebody else's code, so it gets no secret.
        path = Path(f"/proc/{process.pid}/environ")
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        return path.read_bytes().decode(errors="replace")
    return ""


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    found = process.net_connections(kind="tcp")
    return [(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN]


def ui_of(ports: list[tuple[str, int]]) -> str:
    """Everything that Spark's REST API says of its application, empty while it does not answer."""
    for _, port in ports:
        base = f"http://127.0.0.1:{port}/api/v1/applications"
        # Some ports are not the UI's: Py4J answers in a language of its own.
        with suppress(OSError, HTTPException, ValueError, IndexError, TypeError, KeyError):
            name = json.loads(fetched(base))[0]["id"]
            what = ("environment", "jobs", "stages", "executors", "sql?details=true&planDescription=true")
            return "\n".join(fetched(f"{base}/{name}/{one}") for one in what)
    return ""


def fetched(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        error.close()
        return ""


def dump(dsn: str, schema: str) -> str:
    pieces: list[str] = []
    for (table,) in query(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = %s", schema):
        rows = query(dsn, sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, table)))
        pieces += [row for (row,) in rows]
    assert pieces
    return "\n".join(pieces)


def readable_by_others(since: float) -> Iterator[Path]:
    """Files in the folder for temporary ones that were written meanwhile and that any account could read."""
    for folder, subfolders, names in os.walk(tempfile.gettempdir()):
        subfolders[:] = [name for name in subfolders if _mode(Path(folder, name)) & stat.S_IXOTH]
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):
                known = path.lstat()
                if stat.S_ISREG(known.st_mode) and known.st_mode & stat.S_IROTH and known.st_mtime >= since:
                    yield path


def _mode(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_mode
    return 0


def text_of(paths: Iterable[Path]) -> str:
    pieces = []
    for path in paths:
        with suppress(OSError):
            if path.stat().st_size < 50_000_000:
                pieces.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(pieces)
