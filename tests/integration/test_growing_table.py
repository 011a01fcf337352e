"""A growing table as a source: no row is lost whose lower id commits later, on a real PostgreSQL (N2)."""

import json
import random
import re
import threading
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from epochline import CustomSource, Json, Pipeline, PostgresTable
from epochline.audit.findings import Summary
from epochline.audit.run import audit
from epochline.cli.connections import in_environment
from epochline.config.connections import Connection
from epochline.coordinator import PlanOutcome
from epochline.errors import ActionRefusedError, DataLossError, SourceError, SourceUnavailableError
from epochline.operations import Request
from epochline.operations.replay import plan_replay
from epochline.protocol.epoch import Run
from epochline.sources.growing_table import GrowingTable
from epochline.sources.growth import open_writers
from epochline.sources.reading import SourceReader
from tests.databases import as_connection, query
from tests.driver import epoch_of
from tests.integration.auditing import Findings
from tests.integration.guarantee import broken
from tests.integration.in_process import InProcess, growing, over_source
from tests.integration.logins import Login, user
from tests.waiting import wait_until

TABLE = "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text)"
INSERT = "INSERT INTO events (said) VALUES (%s)"


def shop_at(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", as_connection(dsn))
    found = in_environment("shop")
    assert found is not None
    return found


@pytest.fixture
def connection(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Connection:
    return shop_at(postgres_dsn, monkeypatch)


@pytest.fixture
def table(postgres_dsn: str, connection: Connection) -> Callable[..., GrowingTable]:
    query(postgres_dsn, TABLE)

    def made(**options: Any) -> GrowingTable:
        chosen: dict[str, Any] = {"table": "events", "key": "id", "patience_seconds": 0} | options
        return GrowingTable(connection, **chosen)

    return made


@pytest.fixture
def writer(postgres_dsn: str) -> Iterator[Callable[[], Any]]:
    """Opens sessions of writers, each with one transaction that the test ends."""
    with ExitStack() as opened:

        def begin() -> Any:
            session = opened.enter_context(closing(psycopg2.connect(postgres_dsn, application_name="shop")))
            return session, session.cursor()

        yield begin


AfterLook = Callable[[Callable[[], object]], None]


@pytest.fixture
def after_first_look(monkeypatch: pytest.MonkeyPatch) -> AfterLook:
    """Lets something happen once a plan has looked for open transactions the first time."""

    def then(happens: Callable[[], object]) -> None:
        left = [happens]

        def look(cursor: Any, table: int) -> Any:
            found = open_writers(cursor, table)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr("epochline.sources.growing_table.open_writers", look)

    return then


@pytest.fixture
def patience() -> float:
    """The seconds for which a plan of the world waits for open transactions."""
    return 0


@pytest.fixture
def world(postgres_dsn: str, connection: Connection, table: Any, patience: float) -> InProcess:
    source = growing("events", patience_seconds=patience).model_copy(update={"records_per_epoch": 40})
    columns = {"id": "bigint", "said": "text"}
    parse, sink = Json(columns=columns), PostgresTable(table="copied", columns=columns)
    return over_source(postgres_dsn, Pipeline(name="copy", source=source, parse=parse, sinks=sink), connection)


def assert_exact(world: InProcess) -> None:
    """The target holds each committed row of the table once."""
    assert world.sql("SELECT id, said FROM copied ORDER BY id") == world.sql("SELECT id, said FROM events ORDER BY id")
    assert broken(world.sql, "copy", "copied") == {}


def audited(world: InProcess, connection: Connection, found: Findings) -> Summary:
    declared = world.pipeline.source
    assert isinstance(declared, CustomSource)
    return audit(world.dsn, SourceReader(declared.spec, connection=connection), "copy", found)


def caught_up(world: InProcess) -> None:
    while (asked := world.asked_to_plan())[0].outcome is not PlanOutcome.NOTHING_TO_READ:
        world.finish(*asked)


def test_latest_is_not_decided_while_an_older_id_may_still_commit(world: InProcess, writer: Any) -> None:
    latest = world.pipeline.source.model_copy(update={"startup": "latest"})
    world.pipeline = world.pipeline.model_copy(update={"source": latest})
    world.sql(INSERT, "old")
    session, cursor = writer()
    cursor.execute(INSERT, ["open"])
    said = "has no latest position yet: table public.events is being written"
    with pytest.raises(SourceUnavailableError, match=said):
        world.asked_to_plan()
    session.commit()
    assert world.asked_to_plan()[0].outcome is PlanOutcome.NOTHING_TO_READ

    world.sql("ALTER TABLE events ALTER COLUMN id RESTART WITH 9")
    cursor.execute(INSERT, ["open again"])
    with pytest.raises(ActionRefusedError, match="no latest position yet"):
        world.act("adopt-topic", Request(actor="ada", reason="restarted"), topic="events", at="latest")
    session.commit()
    world.act("adopt-topic", Request(actor="ada", reason="restarted"), topic="events", at="latest")
    world.sql(INSERT, "new")
    world.epoch()

    assert world.sql("SELECT said FROM copied") == [("new",)]


@pytest.mark.parametrize("ended", ["commit", "rollback"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_lower_id_that_commits_later_is_not_lost(world: InProcess, writer: Any, first: int, ended: str) -> None:
    (one, earlier), (two, later) = writer(), writer()
    earlier.execute(INSERT, ["lower"])
    later.execute(INSERT, ["higher"])
    sessions = [one, two]
    sessions[first].commit()

    planned, _ = world.asked_to_plan()
    getattr(sessions[1 - first], ended)()
    world.epoch()

    assert planned.outcome is PlanOutcome.NOTHING_TO_READ
    said = " ".join(planned.notes)
    assert "holds back" in said
    assert "table public.events is being written by process" in said
    assert "(shop)" in said
    assert_exact(world)


def test_an_id_that_is_drawn_and_not_inserted_yet_is_not_lost(world: InProcess, writer: Any) -> None:
    """The transaction has no xid yet: its BEFORE trigger waits, so snapshots know nothing of it."""
    world.sql(
        """
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.said = 'slow' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN NEW; END $$;
        CREATE TRIGGER wait BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION wait()
        """
    )
    (gate, gatekeeper), (slow, inserting) = writer(), writer()
    gatekeeper.execute("SELECT pg_advisory_lock(7)")
    thread = threading.Thread(target=inserting.execute, args=(INSERT, ["slow"]), daemon=True)
    thread.start()
    wait_until(lambda: world.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    assert world.sql("SELECT last_value FROM events_id_seq") == [(1,)]
    world.sql(INSERT, "quick")

    outcome = world.asked_to_plan()[0].outcome
    gatekeeper.execute("SELECT pg_advisory_unlock(7)")
    gate.commit()
    thread.join()
    slow.commit()
    world.epoch()

    assert outcome is PlanOutcome.NOTHING_TO_READ
    assert world.sql("SELECT id, said FROM copied ORDER BY id") == [(1, "slow"), (2, "quick")]


def test_a_transaction_that_is_prepared_while_a_plan_waits_is_still_waited_for(
    table: Any, writer: Any, after_first_look: AfterLook
) -> None:
    """PostgreSQL gives the locks of a transaction another owner when it is prepared."""
    session, cursor = writer()
    cursor.execute(INSERT, ["lower"])
    after_first_look(lambda: cursor.execute("PREPARE TRANSACTION 'held'"))
    (held,) = table(patience_seconds=2).partitions()
    session.commit()
    session.autocommit = True
    cursor.execute("ROLLBACK PREPARED 'held'")
    (free,) = table().partitions()

    assert (held.end, held.newest) == (1, 2)
    assert "a prepared transaction" in held.waits_for
    assert (free.end, free.waits_for) == (2, None)


def test_a_plan_waits_for_the_transactions_that_were_open_and_not_for_later_ones(
    table: Any, writer: Any, after_first_look: AfterLook
) -> None:
    (one, earlier), (_, later) = writer(), writer()
    earlier.execute(INSERT, ["earlier"])

    def go_on() -> None:
        later.execute(INSERT, ["later"])
        one.commit()

    after_first_look(go_on)
    (found,) = table(patience_seconds=60).partitions()

    assert (found.end, found.newest, found.waits_for) == (2, 2, None)


@pytest.mark.parametrize("patience", [60.0])
def test_many_writers_with_rollbacks_lose_and_double_nothing(world: InProcess, postgres_dsn: str) -> None:
    """The table is read all the time, and the target compared with it at the end."""

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
            for number in count():
                if number >= 15 and enough.is_set():
                    return
                for _ in range(chance.randint(1, 3)):
                    cursor.execute("SAVEPOINT part")
                    cursor.execute(INSERT, [f"{seed}/{number}"])
                    cursor.execute("SELECT pg_sleep(%s)", [chance.random() / 100])
                    if chance.random() < 0.2:
                        cursor.execute("ROLLBACK TO part")
                if chance.random() < 0.3:
                    session.rollback()
                else:
                    session.commit()

    enough = threading.Event()
    threads = [threading.Thread(target=write, args=(seed,), daemon=True) for seed in range(6)]
    for one in threads:
        one.start()
    beside = 0
    while beside < 5:
        planned, run = world.asked_to_plan()
        if planned.outcome is not PlanOutcome.NOTHING_TO_READ:
            world.finish(planned, run)
            beside += 1
    enough.set()
    for one in threads:
        one.join()
    caught_up(world)

    assert world.sql("SELECT count(*) FROM events")[0][0] > 50
    assert_exact(world)


def test_a_failed_epoch_is_tried_again_while_a_later_transaction_is_open(world: InProcess, writer: Any) -> None:
    """What was below the end of a plan stays readable, although the end of the next plan lies lower."""
    world.sql("INSERT INTO events (said) VALUES ('a'), ('b')")
    planned, run, _ = world.staged()
    world.abort(epoch_of(planned).epoch_id, run, reason="its job failed")
    _, cursor = writer()
    cursor.execute(INSERT, ["open"])

    again = world.plan(run)
    world.finish(again, run)

    assert again.ranges == planned.ranges
    assert_exact(world)


def test_rows_that_were_read_may_be_deleted(world: InProcess) -> None:
    world.sql("INSERT INTO events (said) VALUES ('a'), ('b')")
    world.epoch()
    world.sql("DELETE FROM events")
    world.sql(INSERT, "c")
    world.epoch()

    assert world.sql("SELECT said FROM copied ORDER BY id") == [("a",), ("b",), ("c",)]


def test_what_was_read_of_rows_that_are_deleted_since_is_not_undone(world: InProcess) -> None:
    """I1, INV-9: no later read would bring them back."""
    request = Request(actor="ada", reason="the parse was wrong")
    world.sql("INSERT INTO events (said) VALUES ('a')")
    world.epoch()
    world.act("savepoint", request, name="first")
    world.sql("INSERT INTO events (said) VALUES ('b'), ('c')")
    world.epoch()
    world.sql("DELETE FROM events WHERE said = 'b'")
    stood = world.sql("SELECT said FROM copied ORDER BY id")
    said = "the source counts 1 records in .*, of which 2 were read"

    with pytest.raises(ActionRefusedError, match=said):
        world.act("restore", request, name="first")
    with pytest.raises(ActionRefusedError, match=said.capitalize()):
        plan_replay(world.subject, 2, Run(dag_id="copied", run_id="replay", host="here"))

    assert world.sql("SELECT said FROM copied ORDER BY id") == stood == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("SELECT 1", None),
        ("UPDATE events SET said = 'changed' WHERE id = 1", "source digest"),
        ("DELETE FROM events WHERE id = 1", "records read 2 in the ledger, 1 now"),
        ("UPDATE events SET id = DEFAULT WHERE id = 1", "records read 2 in the ledger, 1 now"),
        ("INSERT INTO events OVERRIDING SYSTEM VALUE VALUES (3, 'late')", "records read 2 in the ledger, 3 now"),
    ],
    ids=["nothing", "update", "delete", "moved", "late id"],
)
def test_an_audit_finds_what_a_writer_changed_in_rows_that_were_read(
    world: InProcess, connection: Connection, changed: str, said: str | None
) -> None:
    """What an author must keep, and no plan can see: read rows do not change, and no id is given by hand."""
    world.sql("INSERT INTO events (said) VALUES ('a'), ('b'); SELECT nextval('events_id_seq')")
    world.epoch()
    world.sql(changed)
    audited(world, connection, found := Findings())

    assert (said is None) is (found.said == [])
    assert (said or "") in " ".join(found.said)


@pytest.mark.parametrize(
    "again",
    [
        f"DROP TABLE events; {TABLE}",
        "TRUNCATE events RESTART IDENTITY",
        "ALTER TABLE events ALTER COLUMN id RESTART WITH 1",
        "ALTER TABLE events ALTER COLUMN id DROP IDENTITY; ALTER TABLE events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY",
    ],
    ids=["dropped", "truncated", "restarted", "another sequence"],
)
def test_a_table_whose_ids_begin_again_stops_the_pipeline(world: InProcess, connection: Connection, again: str) -> None:
    """INV-9, although the new ids have passed the old ones. An audit does not judge them."""
    world.sql("INSERT INTO events (said) VALUES ('a'), ('b')")
    world.epoch()
    world.sql(again)
    world.sql("SELECT nextval('events_id_seq') FROM generate_series(1, 9)")

    with pytest.raises(DataLossError, match="was deleted and made again"):
        world.planned()
    summary = audited(world, connection, found := Findings())
    assert (found.said, summary.not_judged) == ([], 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("ALTER TABLE events ALTER COLUMN id SET CACHE 10", "CACHE 10"),
        ("ALTER TABLE events ALTER COLUMN id SET CYCLE", "CYCLE"),
        ("ALTER TABLE events ALTER COLUMN id SET GENERATED BY DEFAULT", "not GENERATED ALWAYS"),
        ("ALTER TABLE events ALTER COLUMN id DROP IDENTITY", "not GENERATED ALWAYS"),
        ("ALTER TABLE events ALTER COLUMN id SET MINVALUE -9 SET START -9", "below 0"),
        ("ALTER TABLE events SET UNLOGGED", "unlogged"),
        ("ALTER TABLE events DROP CONSTRAINT events_pkey", "no unique index"),
        ("CREATE TABLE child () INHERITS (events)", "parent or children"),
        ("INSERT INTO events (id, said) OVERRIDING SYSTEM VALUE VALUES (5, 'mine')", "has not given yet"),
        ("DROP TABLE events", "there is no table public.events with a column id"),
    ],
)
def test_a_table_whose_ids_may_appear_late_is_refused(table: Any, postgres_dsn: str, changed: str, said: str) -> None:
    source = table()
    source.partitions()
    query(postgres_dsn, changed)

    with pytest.raises(SourceError, match=said):
        source.partitions()


def test_ids_that_a_session_had_kept_are_not_given_once_the_cache_is_one(table: Any, postgres_dsn: str) -> None:
    """PostgreSQL discards them, because the change makes the sequence's file again."""
    query(postgres_dsn, "ALTER TABLE events ALTER COLUMN id SET CACHE 10")
    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        cursor.execute(INSERT, ["keeps ten"])
        session.commit()
        query(postgres_dsn, "ALTER TABLE events ALTER COLUMN id SET CACHE 1")
        (found,) = table().partitions()
        cursor.execute(f"{INSERT} RETURNING id", ["later"])
        ((drawn,),) = cursor.fetchall()
        session.commit()

    assert drawn >= found.end


def test_every_id_below_the_end_is_on_disk(table: Any, writer: Any, postgres_dsn: str) -> None:
    """A crash would undo an id that no commit has written to disk, and the sequence would give it again."""
    session, cursor = writer()
    cursor.execute(INSERT, ["x"])
    cursor.execute("SELECT pg_current_wal_insert_lsn()")
    ((drawn,),) = cursor.fetchall()
    session.rollback()
    table().partitions()

    assert query(postgres_dsn, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", drawn) == [(True,)]


def test_a_record_is_its_row_as_json(table: Any, postgres_dsn: str) -> None:
    query(postgres_dsn, "INSERT INTO events (said) VALUES ('a'), (NULL), ('c')")

    found = [(one.position, one.key, json.loads(one.value)) for one in table().read(0, 2, 4)]
    assert found == [(2, b"2", {"id": 2, "said": None}), (3, b"3", {"id": 3, "said": "c"})]
    (one,) = table(columns=["said"]).read(0, 1, 2)
    assert json.loads(one.value) == {"said": "a"}


@pytest.fixture
def reader(table: Any, postgres_dsn: str, login: Login, monkeypatch: pytest.MonkeyPatch) -> tuple[GrowingTable, str]:
    """The table with one row, asked by a login without rights; and the name of the login."""
    table()
    query(postgres_dsn, "INSERT INTO events (said) VALUES ('a')")
    dsn = login()
    return GrowingTable(shop_at(dsn, monkeypatch), table="events", key="id", patience_seconds=0), user(dsn)


def test_a_login_that_may_read_the_table_and_its_sequence_is_enough(
    reader: tuple[GrowingTable, str], writer: Any, postgres_dsn: str
) -> None:
    source, name = reader
    with pytest.raises(SourceError, match=r"may not read its sequence\. GRANT SELECT"):
        source.partitions()
    query(postgres_dsn, f"GRANT SELECT ON events_id_seq TO {name}")
    with pytest.raises(SourceError, match="permission denied for table events"):
        source.partitions()
    query(postgres_dsn, f"GRANT SELECT ON events TO {name}")

    assert source.partitions()[0].end == 2
    assert [one.position for one in source.read(0, 1, 2)] == [1]
    _, cursor = writer()
    cursor.execute(INSERT, ["open"])
    (held,) = source.partitions()
    assert (held.end, held.newest) == (1, 3)


def test_rows_that_a_policy_hides_are_an_error_and_not_missing(
    reader: tuple[GrowingTable, str], postgres_dsn: str
) -> None:
    source, name = reader
    query(postgres_dsn, f"GRANT SELECT ON events, events_id_seq TO {name}")
    query(postgres_dsn, "ALTER TABLE events ENABLE ROW LEVEL SECURITY")

    for ask in (source.partitions, lambda: list(source.read(0, 1, 2)), lambda: source.count(0, 1, 2)):
        with pytest.raises(SourceError, match="row-level security"):
            ask()


def test_names_are_composed_and_errors_show_no_password(postgres_dsn: str, connection: Connection) -> None:
    name, quoted = 'a"; DROP TABLE events; --.b', '"a""; DROP TABLE events; --.b"'
    query(postgres_dsn, TABLE)
    query(postgres_dsn, f'CREATE TABLE {quoted} ("k""%s" bigint GENERATED ALWAYS AS IDENTITY UNIQUE)')
    query(postgres_dsn, f"INSERT INTO {quoted} DEFAULT VALUES")
    source = GrowingTable(connection, table=name, key='k"%s', columns=['k"%s'])
    assert [one.position for one in source.read(0, 0, 9)] == [1]
    assert (source.count(0, 0, 9), source.partitions()[0].end) == (1, 2)

    nowhere = Connection(where="shop", host="127.0.0.1", port=1, schema="d", login="me", password="hidden")
    with pytest.raises(SourceUnavailableError, match="does not answer") as raised:
        GrowingTable(nowhere, table="events", key="id").partitions()
    assert "hidden" not in str(raised.value)


def test_the_table_and_the_declaration_that_the_page_shows(postgres_dsn: str, connection: Connection) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    section = page.split("## Read a growing PostgreSQL table")[1].split("\n## ")[0]
    (create,) = re.findall(r"^```sql\n(.*?)^```$", section, re.M | re.S)
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    (columns,) = re.findall(r"`Json\(columns=(\{.*?\})\)`", section)
    query(postgres_dsn, create)
    query(postgres_dsn, "INSERT INTO orders (customer, amount) VALUES ('ada', 1.50), ('grace', 99999999.99)")
    names: dict[str, Any] = {"CustomSource": CustomSource}
    exec(code, names)  # noqa: S102 - the page's own
    columns = literal_eval(columns)
    parse, sink = Json(columns=columns), PostgresTable(table="target", columns=columns)
    pipeline = Pipeline(name="orders", source=names["source"], parse=parse, sinks=sink)
    world = over_source(postgres_dsn, pipeline, connection)
    world.epoch()

    copied = world.sql("SELECT id, customer, amount FROM target ORDER BY id")
    assert copied == world.sql("SELECT * FROM orders ORDER BY id")
