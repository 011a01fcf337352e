"""A value is the same value whatever a database or a role sets for its text: every type, from table to table."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg2 import sql

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.cli.connections import in_environment
from epochline.declare.columns import SUPPORTED, parse_type
from epochline.declare.text_settings import TEXT_SETTINGS
from epochline.errors import ConfigurationError, SealRefusedError
from epochline.postgres.ledger.job_session import transaction
from epochline.sources.reading import SourceReader
from tests.crash.reliability import Recovery
from tests.databases import as_connection, query
from tests.integration.auditing import audited
from tests.integration.bench import LINEAGE, NewBench
from tests.integration.in_process import growing, over_records, over_source
from tests.integration.logins import AsSuperuser

# By type, its extreme values as PostgreSQL reads them. A type may have two columns.
VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["3.4028235e38", "-1e-45", "0.1", "NaN", "Infinity", "-Infinity", "-0"],
    "double precision": ["1.7976931348623157e308", "5e-324", "0.1", "NaN", "Infinity", "-Infinity", "-0"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1" * 200, "-0." + "0" * 200 + "1", "0.10", "0"],
    "numeric(12,2)": ["9999999999.99", "-9999999999.99", "0.10"],
    "numeric(60,4)": ["9" * 56 + ".9999"],
    "text": ["", "NULL", "ü\n\"\\'", "\\x00", "$1,234.50", "infinity"],
    "character varying": ["", " "],
    "character varying(3)": ["äöü"],
    "bytea": ["", "\\x", "\\x00ff5c", "\\x" + bytes(range(256)).hex()],
    "date": ["4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "10000-01-01", "5874897-12-31", "infinity", "-infinity"],
    "timestamp with time zone": [
        "4714-11-24 00:00:00+00 BC", "0044-03-15 BC", "1900-01-01 12:00:00.000001+00", "9999-12-31T23:59:59-14:00",
        "20240-01-01 00:00+00", "294247-01-10 04:00:54.775809+00", "294276-12-31 23:59:59.999999+00", "infinity",
        "-infinity",
    ],
    "timestamp without time zone": [
        "4714-11-24 00:00:00 BC", "0044-03-15 BC", "2024-02-01 03:04:05.6", "294276-12-31 23:59:59.999999", "infinity",
        "-infinity",
    ],
    "time without time zone": ["00:00", "23:59:59.999999", "24:00:00"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "inet": ["0.0.0.0/0", "::ffff:1.2.3.4", "fe80::1/64", "10.0.0.1"],
    "cidr": ["0.0.0.0/0", "2001:db8::/32"],
    "macaddr": ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "json": ['{"a":[1.50,null,"\\u0000"]}', '"x"', "1e400"],
    "jsonb": ['{"a": [1.50, null]}', '"\\u00fc"'],
    "interval": [
        "-1 day 02:03:04", "1 day -02:03:04", "1 year 2 mons -3 days -04:05:06.789", "-00:00:00.000001", "0 days",
        "178000000 years", "-178000000 years 11 mons", "2147483647 days", "2562047788:00:54.775807", "infinity",
        "-infinity",
    ],
    "integer[]": ["{}", "{1,NULL,-2147483648}", "{{1,2},{3,4}}"],
    "text[]": ['{"",NULL,"NULL","a,b","\\\\"}'],
    "bytea[]": ['{"\\\\x00ff","\\\\x"}'],
    "double precision[]": ["{NaN,Infinity,-Infinity,0.1,-0}"],
    "numeric[]": ["{NaN,-Infinity,0.10}"],
    "time without time zone[]": ["{24:00:00,00:00:00.000001}"],
    "date[]": ['{infinity,"4714-11-24 BC",5874897-12-31}'],
    "timestamp with time zone[]": ['{infinity,-infinity,"4714-11-24 00:00:00+00 BC","294276-12-31 23:59:59.999999+00"}'],
    "interval[]": ['{"-1 day 02:03:04",infinity}'],
}  # fmt: skip
COLUMNS = {"id": "bigint"} | {f"c{at}": kind for at, kind in enumerate(VALUES)}

# A value of each setting that another database or role may well have.
OTHERS: dict[str, str] = {
    "DateStyle": "German, DMY", "IntervalStyle": "sql_standard", "TimeZone": "America/St_Johns",
    "timezone_abbreviations": "Australia", "bytea_output": "escape", "extra_float_digits": "-15",
    "standard_conforming_strings": "off", "backslash_quote": "on", "array_nulls": "off", "transform_null_equals": "on",
    "quote_all_identifiers": "on", "xmlbinary": "hex", "xmloption": "document", "lc_monetary": "C.utf8",
    "lc_numeric": "C.utf8", "lc_time": "C.utf8", "client_encoding": "LATIN1", "search_path": "pg_temp, pg_catalog",
    "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on",
    "default_text_search_config": "pg_catalog.german",
}  # fmt: skip


class TableTwice:
    """A growing table with every value, read by two pipelines: as it is, and as records of Kafka with the same values.

    Args:
        dsn: of a migrated database.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn, self.seen = dsn, 0
        declared = ", ".join(f"{name} {kind}" for name, kind in list(COLUMNS.items())[1:])
        query(dsn, f"CREATE TABLE public.events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {declared})")
        self.connection = in_environment("shop")
        self.source, self.values = growing("events", patience_seconds=0), list[bytes]()
        self.copied = over_source(dsn, self._pipeline("copied", self.source), self.connection)
        self.told = over_records(dsn, self._pipeline("told", KafkaSource(topics="told")), self.values)

    @staticmethod
    def _pipeline(name: str, source: Any) -> Pipeline:
        sinks = [PostgresTable(table=f"public.{name}", columns=COLUMNS)]
        return Pipeline(name=name, source=source, parse=Json(columns=COLUMNS), sinks=sinks)

    def insert(self) -> None:
        """Every value once, as a row and as a record with PostgreSQL's own JSON; an interval as a person writes it."""
        ((self.seen,),) = query(self.dsn, "SELECT coalesce(max(id), 0) FROM public.events")
        written = [(name, value) for name, kind in list(COLUMNS.items())[1:] for value in VALUES[kind]]
        insert = sql.SQL("INSERT INTO public.events ({}) VALUES ({})")
        rows = [insert.format(sql.Identifier(name), sql.Literal(value)) for name, value in written]
        query(self.dsn, sql.SQL("; ").join(rows))
        as_json = f"SELECT row_to_json(e)::text FROM public.events e WHERE id > {self.seen} ORDER BY id"
        json_rows = query(self.dsn, as_json)
        for (row,), (name, value) in zip(json_rows, written, strict=True):
            if COLUMNS[name] == "interval":
                row = json.dumps(json.loads(row) | {name: value})
            self.values.append(row.encode())
        self.told.source.produce("told", 0, len(written))

    def epochs(self) -> None:
        for world in (self.copied, self.told):
            world.epoch()

    def assert_same(self) -> None:
        """Each target has the new rows with the same values."""
        shown = ", ".join(f"replace({n}::text, ' ', '')" if k == "json" else f"{n}::text" for n, k in COLUMNS.items())
        events, *targets = (
            query(self.dsn, f"SELECT {shown} FROM public.{table} WHERE id > {self.seen} ORDER BY id::bigint")
            for table in ("events", "copied", "told")
        )
        for rows in targets:
            for row, event in zip(rows, events, strict=True):
                assert row == event

    def assert_audited(self) -> None:
        """The audit of the newest epoch of the growing table finds no difference."""
        ((newest,),) = self.copied.sql("SELECT max(epoch_id) FROM epochline.epoch WHERE pipeline = 'copied'")
        reader = SourceReader(self.source.spec, connection=self.connection)
        assert audited(self.dsn, "copied", reader, first=newest, last=newest) == []


@pytest.fixture(scope="module")
def worlds(new_database: Callable[[], str]) -> Iterator[TableTwice]:
    dsn = new_database()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SHOP", as_connection(dsn))
        yield TableTwice(dsn)


def test_every_supported_type_has_its_extreme_values() -> None:
    assert {parse_type(kind).name for kind in VALUES} >= set(SUPPORTED)


@pytest.mark.fault("F51")
@pytest.mark.parametrize("owner", ["DATABASE", "ROLE"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_of_the_database_or_the_role_changes_no_value(
    worlds: TableTwice, name: str, owner: str, recovery: Recovery
) -> None:
    """N2: as ``ALTER … SET``, for every type, table to table and from Kafka, with infinity, NaN, BC and the ends of each range."""
    database, role = worlds.copied.sql("SELECT current_database(), current_user")[0]
    of = sql.SQL("DATABASE {}").format(sql.Identifier(database))
    if owner == "ROLE":
        of = sql.SQL("ROLE {} IN DATABASE {}").format(sql.Identifier(role), sql.Identifier(database))
    value = sql.SQL(OTHERS[name]) if name == "search_path" else sql.Literal(OTHERS[name])
    worlds.insert()
    query(worlds.dsn, sql.SQL("ALTER {} SET {} TO {}").format(of, sql.SQL(name), value))

    recovery.last_fault()
    try:
        worlds.epochs()
        recovery.took()
        worlds.assert_audited()
    finally:
        query(worlds.dsn, sql.SQL("ALTER {} RESET {}").format(of, sql.SQL(name)))

    worlds.assert_same()


def test_each_setting_of_texts_is_tried_with_another_value() -> None:
    assert set(TEXT_SETTINGS) <= set(OTHERS)
    assert not [name for name in TEXT_SETTINGS if str(TEXT_SETTINGS[name]) == OTHERS[name]]


@pytest.mark.parametrize("owner", ["DATABASE", "ROLE"])
def test_a_login_for_which_no_foreign_key_is_enforced_is_refused_by_name(
    bench: NewBench, as_superuser: AsSuperuser, owner: str
) -> None:
    """INV-9: a superuser set ``session_replication_role``; plan, staging, seal and commit change nothing."""
    table = f"CREATE TABLE known (k text PRIMARY KEY); CREATE TABLE t (k text REFERENCES known, v int{LINEAGE})"
    it = bench(existing=table)
    it.sql("INSERT INTO known VALUES ('a')")
    database, role = it.sql("SELECT current_database(), current_user")[0]
    of = f"DATABASE {database}" if owner == "DATABASE" else f"ROLE {role} IN DATABASE {database}"

    def refused(step: Callable[[], object]) -> None:
        as_superuser(f"ALTER {of} SET session_replication_role TO replica")
        with pytest.raises(ConfigurationError, match=f"login {role} begin with session_replication_role = replica"):
            step()
        as_superuser(f"ALTER {of} RESET session_replication_role")

    refused(it.plan)
    planned = it.plan({"k": "a"}, {"k": "unknown"})
    refused(lambda: it.stage(planned, {"k": "a"}, {"k": "unknown"}))
    with pytest.raises(SealRefusedError, match="t_k_fkey"):
        it.commit_staged(planned, {"k": "a"}, {"k": "unknown"})
    it.sql("INSERT INTO known VALUES ('unknown')")
    it.seal_staged(planned, {"k": "a"}, {"k": "unknown"})
    refused(lambda: it.commit(planned))
    it.commit(planned)
    assert it.sql("SELECT k FROM t ORDER BY 1") == [("a",), ("unknown",)]


def test_the_writer_of_staging_asks_for_itself(bench: NewBench, as_superuser: AsSuperuser) -> None:
    """INV-4: a job's login may be another one than that of the ledger."""
    it = bench()
    database, role = it.sql("SELECT current_database(), current_user")[0]
    as_superuser(f"ALTER ROLE {role} IN DATABASE {database} SET session_replication_role TO replica")

    with pytest.raises(ConfigurationError, match="session_replication_role"), transaction(it.dsn, "job"):
        pass
