"""The kinds of pipelines that `bench.kinds` measures, with their records, rows and recipes.

A record's number decides its content. So a kind says in SQL which rows its tables must hold: a query over ``produced``,
whose column ``n`` has the numbers of all records so far. Most records are those of `bench.records` and another member.
"""
# ruff: noqa: S608 - the statements are made of constants

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import kind_records as made
from bench.kind_records import BEGIN, CUSTOMERS, FEW, PATTERN, SCHEMA, SOME
from bench.records import COLUMNS, SPARK_COLUMNS, value
from epochline import Avro, EventTime, Json, KafkaSource, Pipeline, PostgresTable, Regex, StateTable, Tumbling, Windowed

OURS, RECIPES = "by_epochline", "by_recipe"
"""Beginnings of the names of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table of a pipeline."""

    columns: Mapping[str, str]
    rows: str
    """Query of the rows that the table must hold."""
    sink: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `PostgresTable`."""
    suffix: str = ""
    """End of the name, where a pipeline has several tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A pipeline, its records, and the fields of `bench.recipe.Recipe` that differ from the typed append's."""

    name: str
    label: str
    """What the table calls it."""
    value: Callable[[int], bytes | None]
    targets: tuple[Target, ...]
    parse: Any = None
    """By default `Json` with the columns of the first table."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `Pipeline`."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    key: Callable[[int], bytes | None] = lambda _: None
    schema: Mapping[str, Any] | None = None
    """Avro's schema of the values, which is registered first."""
    divisor: int = 1
    """A round has so many times fewer records than one of the typed append."""

    def pipeline(self, topic: str) -> Pipeline:
        """The pipeline from a topic into tables whose names begin with `OURS`."""
        return Pipeline(
            name=f"bench-{self.name}", source=KafkaSource(topics=topic, records_per_epoch=100_000_000),
            parse=self.parse or Json(columns=dict(self.targets[0].columns)),
            sinks=[
                PostgresTable(table=f"{OURS}_{self.name}{one.suffix}", columns=dict(one.columns), **one.sink)
                for one in self.targets
            ],
            **self.more,
        )  # fmt: skip


WHO = "'customer-' || lpad((n % 10000)::text, 6, '0')"
TYPED = f"""
    {WHO} AS who, (n % 100000 / 100.0)::numeric(10,2) AS amount,
    make_timestamptz(2026, 3, 1, 12, n / 60 % 60, n % 60 + n % 1000 / 1000.0, 'UTC') AS at, n % 3 = 0 AS ok
"""
"""The columns of `bench.records.record` but the first, as SQL."""
ALL = f"SELECT n AS id, {TYPED} FROM produced"
OFFSET = {"more": {"`offset`": "`offset`"}, "staged": {**COLUMNS, '"offset"': "bigint"}}
SET = "SET (who, amount, at, ok) = (excluded.who, excluded.amount, excluded.at, excluded.ok)"
KEYED = "ALTER TABLE {table} ADD PRIMARY KEY (id)"
UPSERT = {"mode": "upsert", "key": "id"}

LAST = (
    'INSERT INTO {table} SELECT DISTINCT ON (id) id, who, amount, at, ok FROM {table}_staging ORDER BY id, "offset"'
    f" DESC ON CONFLICT (id) DO UPDATE {SET}"
)
LAST_OR_DELETED = (
    "CREATE TEMP TABLE last ON COMMIT DROP AS SELECT DISTINCT ON (id) * FROM {table}_staging"
    ' ORDER BY id, "offset" DESC',
    "DELETE FROM {table} t USING last WHERE t.id = last.id AND deleted",
    "INSERT INTO {table} SELECT id, who, amount, at, ok FROM last WHERE NOT deleted"
    f" ON CONFLICT (id) DO UPDATE {SET}",
)


def more(
    name: str, label: str, kind: Mapping[str, str], spark: str, member: Callable[[int], str], sql: str, divisor: int = 1
) -> Kind:
    """An append of the typed columns and of others, whose members ``member`` gives as JSON."""
    return Kind(
        name=name, label=label, value=lambda number: value(number)[:-1] + f", {member(number)}}}".encode(),
        targets=(Target(columns={**COLUMNS, **kind}, rows=f"SELECT n AS id, {TYPED}, {sql} FROM produced"),),
        recipe={"schema": f"{SPARK_COLUMNS}, {spark}"}, divisor=divisor,
    )  # fmt: skip


DOCUMENT = """
    jsonb_build_object('plan', 'gold', 'tags', jsonb_build_array('a', 'b'), 'size', n % 100,
        'address', jsonb_build_object('town', 'town ' || n % 500, 'zip', n % 90000)) AS doc
"""


GROUPS = {"ip": "text", "who": "text", "at": "timestamptz", "path": "text", "status": "integer", "bytes": "bigint"}
SPARK_GROUPS = {**GROUPS, "at": "timestamp", "ip": "string", "who": "string", "path": "string", "status": "int"}

LINES = f"""
    SELECT '10.0.0.' || n % 256 AS ip, who, at, '/items/' || n AS path, CASE WHEN ok THEN 404 ELSE 200 END AS status,
        n % 100000 AS bytes FROM (SELECT n, {TYPED} FROM produced) t
"""


def groups() -> str:
    """The columns of a line as Spark's expression."""
    pattern = re.sub(r"\?P<\w+>", "", PATTERN)
    each = (
        f"CAST(regexp_extract(CAST(value AS STRING), r'{pattern}', {at}) AS {kind}) AS {name}"
        for at, (name, kind) in enumerate(SPARK_GROUPS.items(), 1)
    )
    return f"struct({', '.join(each)})"


def newest(keys: int) -> str:
    """The last record of each key."""
    return f"SELECT n % {keys} AS id, {TYPED} FROM produced WHERE n >= (SELECT count(*) FROM produced) - {keys}"


VISIT = {"id": "bigint", "who": "text", "at": "timestamptz"}
WINDOWED = {"who": "text", "window_start": "timestamptz", "window_end": "timestamptz", "seen": "bigint"}
WINDOWS = f"""
    SELECT 'customer-' || lpad((n % {CUSTOMERS})::text, 6, '0') AS who, since AS window_start,
        since + interval '1 min' AS window_end, count(*) AS seen
    FROM (SELECT n, date_bin('1 min', '{BEGIN}'::timestamptz + n * interval '10 ms', '{BEGIN}') AS since FROM produced)
    WHERE since <= '{BEGIN}'::timestamptz + (SELECT max(n) FROM produced) * interval '10 ms' - interval '62 s'
    GROUP BY who, since
"""
COUNTED = (
    "SELECT who, window.start AS window_start, window.end AS window_end, count(*) AS seen FROM {records}"
    " GROUP BY window(at, '1 minute'), who"
)

TOTALS = {"who": "text", "seen": "bigint", "spent": "numeric(20,2)"}
TRANSFORM = """
from pyspark.sql import functions as F

def total(records, state):
    (held,) = state
    new = records.groupBy("who").agg(F.count("*").alias("more"), F.sum("amount").alias("paid"))
    seen, spent = (F.coalesce(was, F.lit(0)) + F.col(now) for was, now in (("seen", "more"), ("spent", "paid")))
    summed = new.join(state[held], "who", "left").select(
        "who", seen.cast("bigint").alias("seen"), spent.cast("decimal(20,2)").alias("spent")
    )
    return {held.removesuffix("_held"): summed, held: summed}
"""
TOTAL = f"SELECT who, count(*) AS seen, sum(amount)::numeric(20,2) AS spent FROM ({ALL}) t GROUP BY who"
ADDED = (
    "INSERT INTO {table} AS t SELECT * FROM {table}_staging ON CONFLICT (who) DO UPDATE"
    " SET seen = t.seen + excluded.seen, spent = t.spent + excluded.spent"
)

SPARK = dict(column.split(" ") for column in SPARK_COLUMNS.split(", "))
WIDE = {f"{name}_{at}": kind for at in range(40) for name, kind in COLUMNS.items()}
SELECTED = [f"{name} AS {name}_{at}" for at in range(40) for name in COLUMNS]


LINES_OF = Target(columns=GROUPS, rows=LINES)
WHOLE = Target(columns=COLUMNS, rows=ALL)
NAMES = Target(columns={"id": "bigint", "who": "text"}, rows=f"SELECT id, who FROM ({ALL}) t", suffix="_who")
PAID = Target(
    columns={"id": "bigint", "amount": "numeric(10,2)"}, rows=f"SELECT id, amount FROM ({ALL}) t", suffix="_paid"
)
# fmt: off
KINDS = (
    Kind(name="typed", label="typed columns, append", value=value, targets=(WHOLE,)),
    more("jsonb", "jsonb", {"doc": "jsonb"}, "doc string", made.document, DOCUMENT),
    more("numeric", "numeric without a scale", {"exact": "numeric"}, "exact decimal(38,18)",
         lambda n: f'"exact": {n}.{n % 1000}', "trim_scale((n || '.' || n % 1000)::numeric) AS exact"),
    more("bytea", "bytea", {"data": "bytea"}, "data binary", made.digest, "sha256(n::text::bytea) AS data"),
    more("uuid", "uuid and inet", {"ref": "uuid", "ip": "inet"}, "ref string, ip string", made.address,
         "md5(n::text)::uuid AS ref, ('10.' || n / 65536 % 256 || '.' || n / 256 % 256 || '.' || n % 256)::inet AS ip"),
    Kind(name="regex", label="lines by a regular expression", value=made.line, targets=(LINES_OF,),
         parse=Regex(pattern=PATTERN, columns={name: GROUPS[name] for name in ("at", "status", "bytes")}),
         recipe={"record": groups()}),
    Kind(name="avro", label="Avro with a registry", value=made.avro, schema=SCHEMA, targets=(WHOLE,),
         parse=Avro(columns=COLUMNS), recipe={"record": f"from_avro(substring(value, 6), '{json.dumps(SCHEMA)}')"}),
    Kind(name="new_keys", label="upsert, new keys", value=value,
         targets=(Target(columns=COLUMNS, rows=ALL, sink=UPSERT),),
         recipe={**OFFSET, "prepare": KEYED, "statements": [LAST]}),
    Kind(name="few_keys", label=f"upsert, {FEW:,} keys", value=lambda n: made.keyed(n, FEW),
         targets=(Target(columns=COLUMNS, rows=newest(FEW), sink=UPSERT),),
         recipe={**OFFSET, "prepare": KEYED, "statements": [LAST]}),
    Kind(name="deletes", label=f"upsert, {SOME:,} keys, a fifth deletes", value=made.deleting,
         key=lambda n: b'{"id": %d}' % (n % SOME),
         targets=(Target(columns=COLUMNS, rows=f"{newest(SOME)} AND (n / {SOME} + n) % 5 <> 0", sink=UPSERT),),
         recipe={"record": f"from_json(CAST(coalesce(value, key) AS STRING), '{SPARK_COLUMNS}')",
                 "more": {**OFFSET["more"], "deleted": "value IS NULL"},
                 "staged": {**OFFSET["staged"], "deleted": "boolean"},
                 "prepare": KEYED, "statements": LAST_OR_DELETED}),
    Kind(name="sinks", label="three tables", value=value, targets=(WHOLE, NAMES, PAID),
         recipe={"prepare": "CREATE TABLE {table}_who (id bigint, who text);"
                            "CREATE TABLE {table}_paid (id bigint, amount numeric(10,2))",
                 "statements": ["INSERT INTO {table} SELECT * FROM {table}_staging",
                                "INSERT INTO {table}_who SELECT id, who FROM {table}_staging",
                                "INSERT INTO {table}_paid SELECT id, amount FROM {table}_staging"]}),
    Kind(name="unique", label="append, unique key, a tenth repeats", value=lambda n: value(n - 5 if n % 10 == 9 else n),
         targets=(Target(columns=COLUMNS, rows=f"{ALL} WHERE n % 10 <> 9", sink={"key": "id", "repeats": "skip"}),),
         recipe={"prepare": KEYED,
                 "statements": ["INSERT INTO {table} SELECT * FROM {table}_staging ON CONFLICT DO NOTHING"]}),
    Kind(name="state", label="transform with state, 10,000 keys", value=value, parse=Json(columns=COLUMNS),
         targets=(Target(columns=TOTALS, rows=TOTAL, sink={"mode": "upsert", "key": "who", "aggregated": True}),),
         more={"transform": "bench_kinds:total",
               "state": StateTable(table=f"{OURS}_state_held", key="who", columns=TOTALS)},
         recipe={"query": "SELECT who, count(*) AS seen, sum(amount) AS spent FROM {records} GROUP BY who",
                 "prepare": "ALTER TABLE {table} ADD PRIMARY KEY (who)", "statements": [ADDED]}),
    Kind(name="windows", label="windowed count, 1,000 keys", value=made.visit, parse=Json(columns=VISIT),
         targets=(Target(columns=WINDOWED, rows=WINDOWS,
                         sink={"mode": "upsert", "key": ("who", "window_start"), "aggregated": True}),),
         more={"windows": Windowed(time=EventTime(column="at", out_of_orderness=2), window=Tumbling(size=60), key="who",
                                   aggregates={"seen": "count(*)"}, into=f"{OURS}_windows")},
         recipe={"schema": "id bigint, who string, at timestamp", "watermark": ("at", "2 seconds"), "query": COUNTED}),
    Kind(name="wide", label="200 columns", value=made.wide, divisor=10,
         targets=(Target(columns=WIDE, rows=f"SELECT {', '.join(SELECTED)} FROM ({ALL}) t"),),
         recipe={"schema": ", ".join(f"{name}_{at} {kind}" for at in range(40) for name, kind in SPARK.items())}),
    more("long", "records of 10 KB", {"body": "text"}, "body string", lambda n: f'"body": "{made.md5(n) * 312}"',
         "repeat(md5(n::text), 312) AS body", divisor=10),
)
# fmt: on
"""In the order of the table."""
