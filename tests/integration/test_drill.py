"""`epochline drill`: each kill is made good, what is wrong is found, and production is only read."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from epochline.drill import faults
from epochline.drill.progress import Progress, Result
from epochline.drill.report import as_markdown
from epochline.failpoints import RECORD, known_failpoints
from epochline.kafka.source import KafkaOffsets
from tests.commands import Call, in_processes, kafka_connection
from tests.databases import query
from tests.integration.kafka_topics import admin_of, configure, group_offsets
from tests.integration.logins import AsSuperuser
from tests.integration.people import Patch, declare

ROOT = Path(__file__).parents[2]

SHORT = {"begin": ("begin.committed",), "stage": ("write.committed",), "commit": ("commit.commit",)}
"""Three of the failpoints that a drill chooses."""

RECOVERED = 5
"""Steps of a short drill: those three, one without a kill, and one that kills a recovery."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where the drill's servers are: below the folder with the declarations, which must not take the drill's for one."""
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "drills" / "people"


@pytest.fixture
def short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(faults, "CHOSEN", SHORT)
    monkeypatch.setattr(faults, "RECOVERY", ("discard.attempts.drop_staging",))


def seen_of(dsn: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """All that a drill could have changed in production: rows with their versions, the ledger, topics, groups."""
    tables = query(
        dsn,
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
    )
    rows = {table: query(dsn, f"SELECT xmin, to_jsonb(t) FROM {table} t ORDER BY ctid") for (table,) in tables}
    with admin_of(bootstrap) as admin:
        groups = sorted(group.get("group_id", "") for group in admin.list_groups())
        names = sorted(admin.list_topics())
    ends = KafkaOffsets({"bootstrap.servers": bootstrap}).held([topic])
    return {"rows": rows, "groups": groups, "topics": names, "ends": {place: log.end for place, log in ends.items()}}


def sessions(dsn: str) -> int:
    """How many sessions the database ever had, without the two of each call."""
    query(dsn, "SELECT pg_stat_force_next_flush()")
    ((count,),) = query(dsn, "SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
    _ASKED[dsn] += 2
    return int(count) - _ASKED[dsn]


_ASKED: Counter[str] = Counter()


def verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    return {step["step"]: step["outcome"] for step in report["steps"]}


def test_every_kill_of_a_short_drill_is_made_good_and_production_stays_as_it_was(
    fed: str, call: Call, postgres_dsn: str, kafka_bootstrap: str, home: Path, short: None, tmp_path: Path,
    monkeypatch: Patch,
) -> None:  # fmt: skip
    """INV-2, INV-7: what a drill finds; it reaches nothing of production after the copy. Each kill aborts an epoch."""
    declare(tmp_path, fed, more="settings=Settings(tolerable_failures=0),")
    file = tmp_path / "people.py"
    file.write_text(file.read_text().replace("import Json", "import Settings, Json"))
    epochline = in_processes(tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap)  # one Spark is one process
    epochline("run", "people", "--once", "--max-records", "100", "--master", "local[1]")
    before = seen_of(postgres_dsn, kafka_bootstrap, fed), group_offsets(kafka_bootstrap, "epochline.people")
    heads = {str(partition): offset for partition, offset in before[1].items()}

    code, out, err = call("drill", "people", "--records", 50, "--minutes", 0, "--json")

    assert code == 3, out + err
    assert json.loads(out)["verdict"] == "unfinished"
    assert f"{fed}-0 [{heads['0']}, " in err
    asked, copied = sessions(postgres_dsn), json.loads(out)["copied"]

    # Production is gone for the rest of the drill.
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", kafka_connection("127.0.0.1:1"))
    code, out, err = call("drill", "people", "--records", 50, "--report", tmp_path / "report.md", "--json")

    assert code == 0, out + err
    report = json.loads(out)
    assert report["verdict"] == "equal"
    assert set(verdicts(report).values()) == {"equal"}
    assert len(report["steps"]) == RECOVERED
    assert report["copied"] == copied
    assert "going on after 0 steps" in err
    assert {step["killed"] for step in report["steps"]} > {"the run was killed"}
    assert "commit.commit" not in report["never_passed"]
    assert sessions(postgres_dsn) == asked
    assert (seen_of(postgres_dsn, kafka_bootstrap, fed), group_offsets(kafka_bootstrap, "epochline.people")) == before
    written = (tmp_path / "report.md").read_text()
    assert "any number of aborted epochs is tolerated" in written
    assert "**After every kill the next run recovered, and everything was equal" in written
    assert processes_of(home) == []


def processes_of(home: Path) -> list[str]:
    """The processes whose environment names the drill's home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(home) in " ".join((*process.environ().values(), *process.cmdline())):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


UNSTEADY = """
import pyarrow as pa
import os
import signal

def parse(batch):
    marks = [os.getpid() for _ in range(len(batch))]
    ids = [int(value.as_py().split(b":")[1].rstrip(b"}")) for value in batch.column("value")]
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(marks, pa.int64())], names=["id", "mark"])
"""


@pytest.mark.slow
def test_rows_that_are_not_made_of_records_alone_are_found_without_a_kill(
    people_topic: str, call: Call, home: Path, short: None, tmp_path: Path, monkeypatch: Patch
) -> None:
    """INV-3: a parse whose result depends on the process that calls it."""
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    (tmp_path / "spark_jobs").mkdir()
    (tmp_path / "spark_jobs" / "unsteady.py").write_text(UNSTEADY)
    columns = {"id": "bigint", "mark": "bigint"}
    declare(tmp_path, people_topic, parse=f'parse="unsteady:parse", record={columns}', **columns)
    feed(call, people_topic, tmp_path, 20)

    code, out, err = call("drill", "people", "--records", 20, "--json")

    assert code == 1, out + err
    report = json.loads(out)
    assert (report["verdict"], verdicts(report)["undisturbed again"]) == ("different", "different")
    (difference,) = report["steps"][0]["different"]
    assert (difference["place"], difference["missing"], difference["extra"]) == ("people", 20, 20)


FORGETFUL = """
CREATE TABLE public.people (id bigint, calls bigserial, _topic text, _partition integer, _offset bigint, _row integer,
                            _epoch bigint);
CREATE FUNCTION public.mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  -- A sequence does not go back with a transaction: after a retry the later rows are other ones.
  IF NEW.calls > 25 THEN NEW.id := -NEW.id; END IF; RETURN NEW; END $$;
CREATE TRIGGER mark BEFORE INSERT ON public.people FOR EACH ROW EXECUTE FUNCTION public.mark();
"""


@pytest.mark.slow
def test_a_trigger_of_the_target_that_does_not_bear_a_retry_is_found(
    people_topic: str, call: Call, postgres_dsn: str, kafka_bootstrap: str, home: Path, short: None, tmp_path: Path
) -> None:
    """INV-2: the trigger comes with the definition of production's table, and acts after a kill alone.

    The copy takes what production's topic took, such as the times of a clock that was wrong.
    """
    query(postgres_dsn, FORGETFUL)
    feed(call, people_topic, tmp_path, 19)
    configure(kafka_bootstrap, people_topic, **{"message.timestamp.after.max.ms": str(2**62)})
    (tmp_path / "late").write_text('{"value": {"id": 19}, "timestamp": "2100-01-01T00:00:00Z"}')
    call.shown("feed", tmp_path / "late", "--topic", people_topic, "--from-jsonl")

    code, out, err = call("drill", "people", "--records", 20, "--json")

    assert code == 1, out + err
    report = json.loads(out)
    assert report["verdict"] == "different"
    assert verdicts(report)["undisturbed again"] == "equal"
    assert verdicts(report)["commit.commit"] == "different"
    assert [one["place"] for step in report["steps"] for one in step["different"]] == ["people"]
    assert query(postgres_dsn, "SELECT (SELECT count(*) FROM people), is_called FROM people_calls_seq") == [(0, False)]


EXAMPLES = {
    "access_log": ("access_log", '{ip} - - [01/Mar/2026:12:00:{s:02} +0000] "GET /{n} HTTP/1.1" 200 {n} "-" "curl"'),
    "ip_count_topic": ("ip_count_source", "2026-03-01_12:{m:02}:{s:02} {ip}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_shipped_example_bears_every_kill_that_a_drill_chooses(
    name: str, on_servers: Call, home: Path, tmp_path: Path, kafka_bootstrap: str, monkeypatch: Patch
) -> None:
    """INV-2, INV-5, INV-7: an append and a sum with a quarantine; windows into a topic."""
    topic, line = EXAMPLES[name]
    monkeypatch.setenv("EPOCHLINE_DAGS", str(ROOT / "dags" / ("" if name == "access_log" else "examples")))
    lines = [line.format(ip=f"10.0.0.{n % 7}", m=n // 60, s=n % 60, n=n) for n in range(200)]
    (tmp_path / "lines").write_text("\n".join([*lines, "no line of either"]) + "\n")
    on_servers.shown("feed", tmp_path / "lines", "--topic", topic)
    with admin_of(kafka_bootstrap) as admin:
        there = admin.list_topics()

    code, out, err = on_servers("drill", name, "--minutes", 60, "--json")

    assert code == 0, out + err
    report = json.loads(out)
    titles = {step["title"] for step in report["steps"]}
    assert {"control", "plan", "begin", "stage", "seal", "commit", "mirror", "recovery"} <= titles
    assert ("publish topic" in titles) is (name == "ip_count_topic")
    assert set(verdicts(report).values()) <= {"equal", "not reached"}
    assert {step["said"] for step in report["steps"]} == {""}
    missing = "topic ip_count_sink does not exist in production; it has one partition here"
    assert (missing in report["notes"]) is (name == "ip_count_topic" and "ip_count_sink" not in there)
    assert report["records"] == len(lines) + 1


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_the_next_call_goes_on(
    people_topic: str, call: Call, home: Path, short: None, tmp_path: Path
) -> None:
    feed(call, people_topic, tmp_path, 20)
    command = [sys.executable, "-c", "from epochline.cli import main; main()", "drill", "people", "--records", "20"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as drill:
        assert drill.stderr is not None
        for said in drill.stderr:
            if said.startswith("[2/"):  # two steps are done, and the next one runs
                break
        drill.send_signal(signal.SIGINT)
        drill.stderr.read()

    assert drill.returncode == 130
    assert processes_of(home) == []
    # The steps are those of the whole list: this process knows a shorter one, of which the first is done.
    # A drill that was killed itself leaves a run behind, which would disturb the next one.
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, RECORD: str(home / "passed")})
    code, out, err = call("drill", "people", "--records", 20, "--json")
    assert orphan.wait(1) == -signal.SIGKILL
    assert code == 0, out + err
    assert "going on after " in err


def feed(call: Call, topic: str, folder: Path, count: int) -> None:
    source = folder / "people.jsonl"
    source.write_text("".join(f'{{"id": {number}}}\n' for number in range(count)))
    call.shown("feed", source, "--topic", topic)


def test_two_drills_of_one_pipeline_do_not_run_at_once(people_topic: str, call: Call, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "epochline-home").touch()
    with (home / "drill.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        refusal = call.refusal("drill", "people")

    assert refusal.startswith("error: another drill of people runs")
    assert not (home / "postgres").exists()


CUSTOM = """
from epochline import CustomSource, Pipeline, PostgresTable, Text, epoch_dag
dag = epoch_dag(Pipeline(name="people", source=CustomSource(source="epochline.sources.counter:Counter", label="mine"), parse=Text(),
                         sinks=[PostgresTable(table="people", columns={"value": "text"})]))
"""
AVRO = """
from epochline import Avro, KafkaSource, Pipeline, PostgresTable, epoch_dag
dag = epoch_dag(Pipeline(name="people", source=KafkaSource(topics="t"), parse=Avro(registry="schemas", columns={"id": "bigint"}),
                         sinks=[PostgresTable(table="people", columns={"id": "bigint"})]))
"""


@pytest.mark.parametrize(("text", "why"), [(CUSTOM, "mine is a source of your own"), (AVRO, "schemas")])
def test_what_cannot_be_copied_is_refused_by_name(
    text: str, why: str, on_servers: Call, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "people.py").write_text(text)

    assert why in on_servers.refusal("drill", "people")
    assert not home.exists()


def test_no_failpoint_fires_where_the_database_does_not_allow_it(
    fed: str, postgres_dsn: str, kafka_bootstrap: str, as_superuser: AsSuperuser, tmp_path: Path
) -> None:
    """A run with a failpoint ends before the first one, with the name of the variable; nothing is planned."""
    ((name,),) = query(postgres_dsn, "SELECT quote_ident(current_database())")
    as_superuser(f"ALTER DATABASE {name} SET epochline.failpoints = 'never'")
    record = tmp_path / "fired"
    every = ",".join(f"{one}:exit" for one in sorted(known_failpoints()))

    done = subprocess.run(
        [sys.executable, "-c", "from epochline.cli import main; main()", "run", "people", "--once"],
        env={**os.environ, "EPOCHLINE_FAILPOINT": every, "EPOCHLINE_FAILPOINT_RECORD": str(record)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert "this database allows no failpoints" in done.stderr
    assert not record.exists()
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.epochs") == [(0,)]


def test_a_drill_chooses_failpoints_that_exist() -> None:
    chosen = {name.partition("@")[0] for names in faults.CHOSEN.values() for name in names}

    assert chosen | set(faults.RECOVERY) <= known_failpoints()


def test_a_drill_that_has_run_no_step_claims_nothing(tmp_path: Path) -> None:
    bound = {"epochline": "0.2.0", "master": "local[1]", "declaration": "d", "code": "c"}
    progress = Progress(file=tmp_path / "progress.json", bound=bound, left=["commit.commit"])
    done = Result(title="commit", killed="the commit", seconds=1.0, outcome="equal")

    nothing = as_markdown("people", progress)
    progress.results["begin.committed"] = done
    something = as_markdown("people", progress)

    assert "**No step was run yet, so nothing is shown." in nothing
    assert "equal to the undisturbed run" not in nothing
    assert "**Everything so far was equal to the undisturbed run." in something


def test_each_kind_of_step_comes_before_the_second_kill_of_any() -> None:
    """The default time does not suffice for all, and the report names each step of an epoch."""
    todo = [faults.Step(title=title, faults=(name,)) for title, name in ("aa", "ab", "bc", "cd", "ce")]

    assert [step.name for step in in_turn(todo)] == ["a", "c", "d", "b", "e"]


def in_turn(todo: list[faults.Step]) -> Iterator[faults.Step]:
    done: list[str] = []
    while todo:
        step = faults.next_of(todo, done)
        todo.remove(step)
        done.append(step.title)
        yield step
