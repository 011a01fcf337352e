"""A declaration is checked where it is written: the error names the field and the fix."""

import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline import (
    Avro,
    Bytes,
    FailureRate,
    Files,
    FixedDelay,
    FromGroup,
    FromOffsets,
    FromTimestamp,
    Json,
    KafkaSource,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Regex,
    Settings,
    Text,
)
from epochline.declare.specs import load_function
from epochline.declare.table import order_columns
from epochline.declare.version import VERSION
from epochline.errors import DeclarationError, VersionError
from tests.declaring import read_back

Fields = dict[str, Any]

RECORD = {"client": "text", "hits": "bigint", "seen": "timestamptz"}
PARSE = "pipelines.access_log:parse"
SELECT = "pipelines.access_log:per_client"


def source(**fields: Any) -> KafkaSource:
    return KafkaSource(**({"topics": "orders"} | fields))


def table(**fields: Any) -> PostgresTable:
    return PostgresTable(**({"table": "clients", "columns": RECORD} | fields))


def pipeline(**fields: Any) -> Pipeline:
    defaults = {"name": "orders", "source": source(), "parse": Json(columns=RECORD), "sinks": table()}
    return Pipeline(**(defaults | fields))


UPSERT: Fields = {"mode": "upsert", "key": "client"}
ADD: Fields = {"mode": "add", "key": "client", "measures": "hits", "columns": {"client": "text", "hits": "bigint"}}

WRONG_SOURCE = {
    "neither topics nor pattern": ({"topics": ()}, "give either topics or pattern"),
    "topics and pattern": ({"pattern": "o.*"}, "give either topics or pattern, and not both"),
    "topic with a space": ({"topics": "my orders"}, "topics: Kafka allows no topic named 'my orders'"),
    "topic of 250 characters": ({"topics": "x" * 250}, "topics: Kafka allows no topic"),
    "topic of dots": ({"topics": ".."}, "topics: Kafka allows no topic named '..'"),
    "topic with a line feed": ({"topics": "a\n"}, "topics: Kafka allows no topic named"),
    "topic with a quote": ({"topics": "a;'b"}, "topics: Kafka allows no topic named"),
    "empty topic": ({"topics": ""}, "topics: Kafka allows no topic named ''"),
    "topic twice": ({"topics": ("a", "a")}, "topics: a topic is named twice"),
    "broken pattern": ({"topics": (), "pattern": "("}, "pattern: not a regular expression"),
    "unknown startup": ({"startup": "group"}, "startup: write 'earliest', 'latest', FromGroup"),
    "startup of no kind": ({"startup": 5}, "startup: write 'earliest', 'latest', FromGroup"),
    "offsets of another topic":
        ({"startup": FromOffsets(offsets={"orderz": {0: 1}})},
         "startup: gives offsets for orderz, which topics does not name"),
    "limit that is a statement": ({"records_per_epoch": "1; DROP TABLE x"}, "records_per_epoch: Input should be a valid"),
    "limit of nothing": ({"records_per_epoch": 0}, "records_per_epoch: Input should be greater than 0"),
    "unknown field": ({"brokers": "x:9092"}, "brokers: Extra inputs are not permitted"),
}  # fmt: skip

PLACE = ("_topic", "_partition", "_offset", "_row")
WRONG_TABLE = {
    "kept values in mode append": ({"keep_unavailable": True}, "keep_unavailable: supported in mode 'upsert' with lineage"),
    "kept values without lineage":
        ({"mode": "upsert", "key": "client", "lineage": False, "keep_unavailable": True}, "keep_unavailable: supported"),
    "empty name": ({"table": ""}, "table: a name must not be empty"),
    "empty schema": ({"table": ".orders"}, "table: a name must not be empty"),
    "NUL in the name": ({"table": "a\0b"}, "table: a name must not be empty or hold a NUL"),
    "name of 64 bytes": ({"table": "ü" * 32}, "table: .* is longer than PostgreSQL's 63 bytes; shorten it"),
    "the ledger's schema": ({"table": "epochline.epoch"}, "table: the schema of 'epochline.epoch' is reserved"),
    "the staging schema": ({"table": "epochline_staging.x"}, "table: the schema of"),
    "the catalog": ({"table": "pg_catalog.x"}, "table: the schema of"),
    "unknown mode": ({"mode": "merge"}, "mode: Input should be 'append', 'upsert', 'add' or 'replace'"),
    "no columns": ({"columns": {}}, "columns: name at least one column, or leave columns out for a table that exists"),
    "own column": ({"columns": {"_epoch": "bigint"}}, "columns: '_epoch' is a name that epochline uses for a column itself"),
    "column of 64 bytes": ({"columns": {"x" * 64: "text"}}, "columns: .* longer than PostgreSQL's 63 bytes"),
    "unknown type": ({"columns": {"a": "cash"}}, "columns: unsupported type 'cash'; use one of"),
    "upsert without key": ({"mode": "upsert"}, "key: mode 'upsert' needs it"),
    "insert time that is a column": ({"insert_time": "client"}, "insert_time: give a column that is not among columns"),
    "insert time of sums": (ADD | {"insert_time": "at"}, "insert_time: .* mode 'add' has none"),
    "insert time with an own name": ({"insert_time": "_epoch"}, "insert_time: '_epoch' is a name that epochline uses"),
    "add without key": (ADD | {"key": ()}, "key: mode 'add' needs it"),
    "add without measures": (ADD | {"measures": ()}, "measures: mode 'add' needs it"),
    "append with key": ({"key": "client"}, "repeats: a key in mode 'append' needs it: 'refuse' or 'skip'"),
    "repeats without key": ({"repeats": "skip"}, "repeats: supported with a key in mode 'append'"),
    "repeats of an upsert": (UPSERT | {"repeats": "skip"}, "repeats: supported with a key in mode 'append'"),
    "unique key not a column": ({"key": "id", "repeats": "skip"}, "key: id is not among the columns"),
    "a part of the place as key": ({"key": ("_topic", "_offset"), "repeats": "refuse"}, "key: _topic, _offset is not"),
    "skipped repeats of a place": ({"key": PLACE, "repeats": "skip"}, "repeats: a repeat of a record's place is refus"),
    "place without lineage": ({"key": PLACE, "repeats": "refuse", "lineage": False}, "key: the record's place needs"),
    "skipped repeats of aggregated rows":
        ({"key": "client", "repeats": "skip", "aggregated": True}, "repeats: aggregated rows have no order"),
    "replace with key": ({"mode": "replace", "key": "client"}, "key: not supported in mode 'replace'"),
    "upsert with measures": (UPSERT | {"measures": "hits"}, "measures: not supported in mode 'upsert'"),
    "add with order_by": (ADD | {"order_by": "hits"}, "order_by: not supported in mode 'add'"),
    "append with order_by": ({"order_by": "seen"}, "order_by: not supported in mode 'append'"),
    "append with tombstone": ({"tombstone": "delete"}, "tombstone: supported in mode 'upsert', not 'append'"),
    "unknown tombstone": (UPSERT | {"tombstone": "keep"}, "tombstone: Input should be 'delete', 'ignore' or 'quarant"),
    "aggregated add": (ADD | {"aggregated": True}, "aggregated: rows of mode 'add' are sums already; remove it"),
    "key not a column": (UPSERT | {"key": "id"}, "key: id is not among the columns"),
    "measure not a column": (ADD | {"measures": ("hits", "x")}, "measures: x is not among the columns"),
    "text measure": (ADD | {"columns": {"client": "text", "hits": "text"}}, "measures: hits is text; only integer and"),
    "float measure": (ADD | {"columns": {"client": "text", "hits": "real"}}, "measures: hits is real; only integer"),
    "add with a column to spare": (ADD | {"columns": RECORD}, "columns: in mode 'add' each column .* check seen"),
    "key that is a measure":
        ({"mode": "add", "key": "hits", "measures": "hits", "columns": {"hits": "bigint"}},
         "columns: in mode 'add' each column belongs to the key or is a measure; check key"),
    "select that is no reference":
        ({"select": "per_client"}, "select: write it as 'pipelines.my_pipeline:my_function'"),
    "select of no module": ({"select": "nowhere.x:f"}, "select: there is no module 'nowhere.x'; put the function into"),
    "select of no function": ({"select": "pipelines.access_log:nope"}, "select: .* defines no function 'nope'"),
}  # fmt: skip

WRONG_PIPELINE = {
    "empty name": ({"name": ""}, "name: '': up to 100 letters, digits"),
    "name with a space": ({"name": "my orders"}, "name: 'my orders': up to 100 letters"),
    "name with a line feed": ({"name": "a\n"}, "name: .*up to 100 letters"),
    "name with a path": ({"name": "../../etc"}, "name: .*up to 100 letters"),
    "name with a quote": ({"name": "a\"b"}, "name: .*up to 100 letters"),
    "name of 101 characters": ({"name": "x" * 101}, "name: .*up to 100 letters"),
    "name that begins with a dot": ({"name": ".x"}, "name: '.x': .* beginning with a letter or digit"),
    "no sinks": ({"sinks": ()}, "sinks: Tuple should have at least 1 item"),
    "a table twice": ({"sinks": (table(), table(table="public.clients"))}, "sinks: a table is named twice"),
    "parse that is no reference": ({"parse": "parse", "record": RECORD}, "parse.*write it as 'pipelines.my_pipeline"),
    "parse of no module": ({"parse": "nowhere:f", "record": RECORD}, "there is no module 'nowhere'; put the function"),
    "function without record": ({"parse": PARSE}, "record: name the columns and types that the function parse returns"),
    "parser with record": ({"record": RECORD}, "record: a ready-made parser brings its own columns; take it out"),
    "record that Spark cannot hold": (
        {"transform": PARSE, "parse": PARSE, "record": {"a": "numeric(39,2)"}}, "record: a is numeric.39,2.; with a transform",
    ),
    "record with a scale that Spark cannot hold": (
        {"transform": PARSE, "parse": PARSE, "record": {"a": "numeric(3,5)"}}, "Declare numeric, which a transform gets as text",
    ),
    "order by what only PostgreSQL compares": (
        {"parse": PARSE, "record": {"a": "tstzrange"}, "sinks": [
            PostgresTable(table="t", columns={"a": "tstzrange"}, mode="upsert", key="a", order_by="a"),
        ]}, "order_by: a is tstzrange, which cannot order rows",
    ),
    "record of unknown type": ({"parse": PARSE, "record": {"a": "html"}}, "record: unsupported type 'html'"),
    "sink column that the record lacks":
        ({"sinks": table(columns={"nope": "text"})},
         r"sinks.clients.columns: the record has no nope; it has client, hits, seen. Rename them in parse, or"),
    "order that the record lacks":
        ({"sinks": table(**UPSERT, order_by="version")}, "sinks.clients.order_by: version is not a column of the record"),
    "order that only the select gives":
        ({"sinks": table(**UPSERT, order_by="version", select=SELECT, columns=RECORD | {"version": "int"})},
         "sinks.clients.order_by: version is not a column of the record"),
    "order that nobody names, with a transform":
        ({"sinks": table(**UPSERT, order_by="version"), "transform": SELECT},
         "sinks.clients.order_by: version is a column neither of the record nor of the table.*name it in columns"),
    "aggregated without transform":
        ({"sinks": table(aggregated=True)}, "sinks.clients.aggregated: only rows of a transform are aggregated"),
    "kept values of a transform":
        ({"sinks": table(**UPSERT, keep_unavailable=True), "transform": SELECT},
         "sinks.clients.keep_unavailable: a transform's rows give every value; remove it"),
    "select next to transform":
        ({"sinks": table(select=SELECT), "transform": SELECT},
         "sinks.clients.select: not used with a transform, which returns each table's rows"),
    "transform of no function":
        ({"transform": "pipelines.access_log:nope"}, "transform: .* defines no function 'nope'"),
    "json with own column": ({"parse": Json(columns={"_offset": "bigint"})}, r"parse: '_offset' is .* paths=\{'offset': '\$._offset'\}"),
    "json with an empty name": ({"parse": Json(columns={"": "text"})}, "parse: a name must not be empty"),
    "regex with own column": ({"parse": Regex(pattern="(?P<_epoch>x)")}, "parse: '_epoch' is a name that epochline uses"),
    "text into own column": ({"parse": Text(column="_topic")}, "parse: '_topic' is a name that epochline uses"),
    "bytes into no column": ({"parse": Bytes(column="")}, "parse: a name must not be empty"),
    "unknown policy": ({"bad_records": "drop"}, "bad_records: Input should be 'fail' or 'quarantine'"),
    "interval of nothing": ({"schedule": timedelta(0)}, "schedule: an interval must be longer than zero"),
    "waking all the time": ({"wake_on_data": 0}, "wake_on_data: must be longer than zero"),
    "waking next to a schedule without pauses":
        ({"wake_on_data": 5, "schedule": "@continuous"}, "wake_on_data: cannot be combined with schedule='@continuous'"),
    "interval next to schedule": ({"settings": Settings(interval=5)}, "settings: interval: set schedule="),
    "unknown profile":
        ({"profile": "nope"}, "profile: there is no profile 'nope'; known profiles: checkpoint_demo, wo"),
    "unknown field": ({"parallelism": 4}, "parallelism: Extra inputs are not permitted"),
    "unknown source": ({"source": "orders"}, "source: "),
}  # fmt: skip

WRONG_JSON = {
    "default of no column": ({"columns": {"a": "text"}, "defaults": {"b": "x"}}, "defaults: b is not among the columns"),
    "default of another type": ({"columns": {"a": "integer"}, "defaults": {"a": "1"}}, "defaults: a is integer, which '1' does not"),
    "true for a number": ({"columns": {"a": "numeric"}, "defaults": {"a": True}}, "defaults: a is numeric, which True does not"),
    "null as a default": ({"columns": {"a": "jsonb"}, "defaults": {"a": None}}, "defaults: a is jsonb, which None does not"),
    "no columns": ({"columns": {}}, "columns: "),
    "unknown type": ({"columns": {"a": "html"}}, "columns: unsupported type 'html'"),
    "path of no column": ({"columns": {"a": "text"}, "paths": {"b": "$.b"}}, "paths: b is not among the columns"),
    "path without a beginning": ({"columns": {"a": "text"}, "paths": {"a": "b.c"}}, r"paths: 'b.c': a path begins with \$"),
    "path to nothing": ({"columns": {"a": "text"}, "paths": {"a": "$"}}, r"paths: '\$' names no member"),
    "path that ends in a dot":
        ({"columns": {"a": "text"}, "paths": {"a": "$.b."}}, r"paths: '\$.b.' is not a path at character 3"),
    "path into an array":
        ({"columns": {"a": "text"}, "paths": {"a": "$.b[0].c"}}, "paths: .* does not go into arrays; read the array as"),
    "path into every element":
        ({"columns": {"a": "text"}, "paths": {"a": "$.b[*]"}}, "paths: .* does not go into arrays; read the array as"),
    "path into a text":
        ({"columns": {"b": "text", "a": "text"}, "paths": {"a": "$.b.c"}},
         r"paths: a is read from inside \$.b, which the column b reads as text; an object fits only json or jsonb"),
}  # fmt: skip
WRONG_REGEX = {
    "broken": ({"pattern": "("}, r"pattern: RE2 refuses it: missing \): \(; the syntax: https"),
    "balanced only as a part": ({"pattern": "(?P<a>x))(?:y"}, "pattern: RE2 refuses it: unexpected"),
    "with a look-ahead": ({"pattern": "(?P<a>x(?=y))y"}, r"pattern: RE2 refuses it: invalid perl operator: \(\?="),
    "with a back reference": ({"pattern": r"(?P<a>x)\1"}, r"pattern: RE2 refuses it: invalid escape sequence: \\1"),
    "repeated too often": ({"pattern": "(?P<a>x{1001})"}, "pattern: RE2 refuses it: invalid repetition size: .1001."),
    "too large": ({"pattern": r"(?P<a>.{999}\pL{999})"}, "pattern: RE2 refuses it: pattern too large"),
    "with a name that RE2 refuses": ({"pattern": "(?P<a-b>x)"}, "pattern: RE2 refuses it: invalid named capture group"),
    "with a name in two branches": (
        {"pattern": "(?P<a>x)|(?P<a>y)"},
        "pattern: names the group a twice; give each branch",
    ),
    "that takes characters apart": ({"pattern": r"(?P<a>\C)"}, r"pattern: \\C matches one byte"),
    "without groups": ({"pattern": "a(b)"}, "pattern: has no named group"),
    "with a stranger": ({"pattern": "(?P<a>x)", "columns": {"b": "int"}}, "columns: b name no group"),
    "unknown type": ({"pattern": "(?P<a>x)", "columns": {"a": "html"}}, "unsupported type 'html'"),
}
WRONG_TEXT = {"unknown field": ({"encoding": "latin1"}, "encoding: Extra inputs are not permitted")}
WRONG_TOPIC = {
    "paths":
        ({"topic": "t", "value": Json(columns={"a": "text"}, paths={"a": "$.b.c"})}, "value: paths: for reading only"),
    "what Avro reads":
        ({"topic": "t", "value": Avro(columns={"at": "timestamptz"}, unit="us", unavailable="gone")},
         "value: unavailable, unit: for reading only"),
}  # fmt: skip
WRONG_GROUP = {
    "no group": ({}, "group: give the group.id of the consumer group"),
    "empty group": ({"group": ""}, "group: give the group.id of the consumer group"),
    "unknown reset": ({"group": "g", "reset": "none"}, "reset: Input should be 'earliest', 'latest' or"),
}
WRONG_MOMENT = {"without a zone": ({"timestamp": datetime.fromisoformat("2026-03-01")}, "timestamp: .*timezone")}
WRONG_OFFSETS = {
    "no offsets": ({"offsets": {}}, "offsets: name a topic, its partitions"),
    "negative offset": ({"offsets": {"orders": {0: -1}}}, "orders-0: invalid offset -1"),
}
WRONG: list[tuple[Callable[..., object], type, Fields]] = [
    (source, KafkaSource, WRONG_SOURCE), (table, PostgresTable, WRONG_TABLE), (pipeline, Pipeline, WRONG_PIPELINE),
    (Json, Json, WRONG_JSON), (Regex, Regex, WRONG_REGEX), (Text, Text, WRONG_TEXT),
    (KafkaTopic, KafkaTopic, WRONG_TOPIC), (FromGroup, FromGroup, WRONG_GROUP),
    (FromTimestamp, FromTimestamp, WRONG_MOMENT), (FromOffsets, FromOffsets, WRONG_OFFSETS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("declare", "kind", "fields", "said"),
    [
        pytest.param(declare, kind, *case, id=f"{kind.__name__}: {name}")
        for declare, kind, cases in WRONG
        for name, case in cases.items()
    ],
)
def test_a_wrong_declaration_names_its_field_and_the_fix(
    declare: Callable[..., object], kind: type, fields: Fields, said: str
) -> None:
    """X28: a group's id is mandatory."""
    with pytest.raises(DeclarationError, match=f"Invalid declaration of {kind.__name__}.*{said}"):
        declare(**fields)


def files(path: str) -> Files:
    return Files(path=path, columns=RECORD)


SPELLINGS = {
    "/data/x": ("/data/x", "/data//x", "//data/x", "/data/./x", "/data/x/", "/data/x/.", "file:///data/x/", "local:///data//x"),
    "/": ("/", "//", "/.", "file:///"),
    "webhdfs://h:9870/data/x": ("webhdfs://h:9870/data/x", "webhdfs://h:9870//data/./x/"),
    "s3://b/x": ("s3://b/x", "s3://b/x/", "s3://b/x//"),
    "s3://b//x/./y": ("s3://b//x/./y",),
    "memory://x": ("memory://x", "memory://x/"),
}  # fmt: skip


@pytest.mark.parametrize(("whole", "spellings"), SPELLINGS.items(), ids=SPELLINGS)
def test_a_folder_has_one_name_however_it_is_written(whole: str, spellings: tuple[str, ...]) -> None:
    assert {files(one).path for one in spellings} == {whole}
    assert {files(one).name for one in spellings} == {f"files:{whole}"}


@pytest.mark.parametrize("other", ["/data//x", "/data/./x", "/data/x/", "file:///data/x"])
def test_a_folder_in_two_spellings_is_named_twice(other: str) -> None:
    with pytest.raises(DeclarationError, match="sinks: a topic, a path or a custom sink is named twice"):
        pipeline(sinks=(files("/data/x"), files(other)))


LINE = Json(columns={"line": "text"})
LOOPS: dict[str, tuple[Fields, Fields]] = {
    "a name": ({"topics": ("in", "out")}, {}),
    "a pattern": ({"pattern": "o.*"}, {}),
    "another topic of the sink": ({"topics": "else"}, {"other_topics": ("else",), "topic_column": "line"}),
    "the markers": ({"topics": "epochline.markers"}, {}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_pipeline_that_reads_what_it_sends_is_refused(name: str) -> None:
    """INV-9: each epoch would give the next one its records, without end. A stored one is read back for its publish."""
    source, sink = LOOPS[name]
    given = {"parse": LINE, "sinks": KafkaTopic(**{"topic": "out", "value": LINE} | sink)}
    apart = pipeline(source=KafkaSource(**source, connection="another_cluster"), **given)

    with pytest.raises(DeclarationError, match=r"sinks\.kafka:out: the pipeline would read what it sends to "):
        pipeline(source=KafkaSource(**source), **given)

    read_back(Pipeline.from_stored(apart.stored().replace('"another_cluster"', '"epochline_kafka"')))


def test_no_pattern_matches_the_topic_of_the_markers() -> None:
    """INV-9: each publish writes there, so that its pipeline would never be done; to others they are no records."""
    assert not KafkaSource(pattern=".*").reads("epochline.markers")
    assert KafkaSource(pattern=".*").reads("epochline.other")
    at_least_once = KafkaTopic(topic="out", value=LINE, semantics="at_least_once")
    pipeline(source=KafkaSource(topics="epochline.markers"), parse=LINE, sinks=at_least_once)


REFUSED_PATHS = {
    "write an absolute path": ("data/x", "", "file:data/x", "file://data/x", "file://", "u:canary@h/x"),
    r"write the path without '\.\.'": ("/data/y/../x", "file:///data/../data/x", "webhdfs://h/../x", "webhdfs://canary@h/../x"),
    r"a URL must not hold a password.*docs/files\.md":
        ("sftp://u:canary@h/x", "sftp://u:c@canary@h", "ftp://:canary@h/x", "simplecache::sftp://u:canary@h/x"),
    r"\w+:// is not supported, because .*docs/files\.md": ("hdfs:///x", "sftp://canary@h/x", "ftp://h/x", "smb://h/x", "s3a://b/x"),
    "simplecache::s3:// is not supported": ("simplecache::s3://b/x",),
}  # fmt: skip


@pytest.mark.parametrize(("said", "path"), [(said, path) for said, paths in REFUSED_PATHS.items() for path in paths])
def test_a_path_that_is_refused_is_not_repeated(said: str, path: str) -> None:
    """It may depend on where a task runs, or hold a password."""
    with pytest.raises(DeclarationError, match=f"path: {said}") as raised:
        files(path)

    assert "canary" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "path", ["abfs://container@account.dfs.core.windows.net/x", "webhdfs://u@h:22/x", "s3://b/a:b@c", "/data/u:p@h"]
)
def test_what_is_no_password_is_taken(path: str) -> None:
    assert files(path).path == path


def test_a_stored_path_stays_as_the_ledger_knows_it() -> None:
    stored = pipeline(sinks=files("/data/x")).stored().replace('"/data/x"', '"/data//x"')

    (sink,) = Pipeline.from_stored(stored).sinks

    assert str(sink) == "files:/data//x"


def test_a_declaration_of_another_version_is_refused_by_name_and_not_guessed() -> None:
    stored = pipeline().stored().replace('"name":', '"of_later":1,"name":', 1)

    with pytest.raises(VersionError, match=f"a declaration that epochline {VERSION} cannot read.*of_later"):
        Pipeline.from_stored(stored)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        source(startup="group", records_per_epoch=0)

    assert "startup: " in str(caught.value)
    assert "records_per_epoch: " in str(caught.value)
    assert not caught.value.retryable


def test_one_name_may_stand_alone() -> None:
    one = pipeline(sinks=table(mode="upsert", key="client", order_by="seen"))

    assert one.source.topics == ("orders",)
    assert (one.targets[0].key, one.targets[0].order_by) == (("client",), ("seen",))


ADDED = PostgresTable(table="t", **ADD)
VARIETY: dict[str, Fields] = {
    "plain": {},
    "json": {"parse": Json(columns={"a b": "varchar(3)", "n": "numeric(12,2)"}), "sinks": PostgresTable(table="t")},
    "nested json": {
        "parse": Json(columns={"city": "text", "zip": "text"}, paths={"city": "$.a.city", "zip": '$.a["zip code"]'}),
        "sinks": PostgresTable(table="t"),
    },
    "regex": {"parse": Regex(pattern=r"(?P<client>\S+) (?P<hits>\d+)", columns={"hits": "int"}), "sinks": ADDED},
    "bytes": {"parse": Bytes(column="raw"), "sinks": PostgresTable(table="Schéma.t\"a'b", lineage=False)},
    "function": {"parse": PARSE, "record": RECORD},
    "pattern": {"source": KafkaSource(pattern="orders-.*", startup="latest", gaps_expected=True)},
    "from a group": {"source": KafkaSource(topics="orders", startup=FromGroup(group="flink", reset="latest"))},
    "from a moment": {
        "source": KafkaSource(topics="orders", startup=FromTimestamp(timestamp=datetime(2026, 3, 1, tzinfo=UTC)))
    },
    "from offsets": {"source": KafkaSource(topics="orders", startup=FromOffsets(offsets={"orders": {0: 3, 11: 0}}))},
    "transform": {"transform": SELECT, "sinks": (table(aggregated=True), table(table="b"))},
    "upsert": {"sinks": table(**UPSERT, order_by=("seen", "hits"), tombstone="ignore")},
    "replace": {"sinks": table(mode="replace")},
    "schedule": {"schedule": timedelta(minutes=7, seconds=3)},
    "woken": {"wake_on_data": 7},
    "cron": {"schedule": "*/5 * * * *"},
    "continuous": {"schedule": "@continuous"},
    "times": {"settings": Settings(timeout=timedelta(milliseconds=1500)), "lock_timeout": timedelta(seconds=5)},
    "fixed delay": {"settings": Settings(restart=FixedDelay(attempts=3, delay=0.5))},
    "failure rate": {"settings": Settings(restart=FailureRate(max_failures=3, interval=300))},
    "profile": {"profile": "word_count"},
    "spark": {"spark_conf": {"spark.cores.max": "2"}, "spark_connection": "other", "tags": ("a", "ü")},
}


@pytest.mark.parametrize("fields", VARIETY.values(), ids=VARIETY)
def test_a_stored_declaration_is_read_back_equal(fields: Fields) -> None:
    """The Spark job runs what was planned: the ledger gives back the same declaration and the same hash."""
    read_back(pipeline(**fields))


@pytest.mark.parametrize("newer", ["paths", "wake_on_data"])
def test_a_declaration_without_a_newer_field_is_stored_as_before_there_was_the_field(newer: str) -> None:
    """The ledger keeps declarations for ever, and their hashes mean the same."""
    assert newer not in pipeline().stored()
    assert '"startup":"latest"' in pipeline(source=source(startup="latest")).stored()


def test_the_group_of_the_mirror_is_no_start() -> None:
    """INV-8: the mirror is for monitors."""
    with pytest.raises(DeclarationError, match=r"epochline\.orders is the group that epochline mirrors"):
        pipeline(source=source(startup=FromGroup(group="epochline.orders")))


@given(
    columns=st.dictionaries(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15).filter(
            lambda name: not name.startswith("_")
        ),
        st.sampled_from(["int", "text", "varchar(9)", "numeric(9,3)", "timestamptz", "bytea", "jsonb"]),
        min_size=1,
        max_size=6,
    ),
    limit=st.integers(1, 10**12),
    delay=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9)),
)
def test_whatever_names_and_numbers_it_holds_it_is_read_back_equal(
    columns: dict[str, str], limit: int, delay: timedelta
) -> None:
    parts: Fields = {"source": source(records_per_epoch=limit), "settings": Settings(minimum_pause=delay)}

    read_back(pipeline(**parts, parse=Json(columns=columns), sinks=table(columns=columns)))


def test_every_field_counts_in_the_hash() -> None:
    """The hash in each epoch shows which declaration it ran."""
    sources = [
        source(topics="returns"), source(startup="latest"), source(records_per_epoch=5), source(gaps_expected=True),
        source(connection="x"),
    ]  # fmt: skip
    sinks = [
        table(table="t2"), table(columns={"client": "text"}), table(lineage=False), table(select=SELECT),
        table(mode="upsert", key="hits"), table(**UPSERT, order_by="seen"), table(**UPSERT, tombstone="quarantine"),
    ]  # fmt: skip
    changes: list[Fields] = [
        *[{"source": one} for one in sources], *[{"sinks": one} for one in sinks], {"name": "other"},
        {"bad_records": "quarantine"}, {"explode": "hits"}, {"postgres_connection": "x"},
        {"settings": Settings(on_cancel="delete")}, {"commit_statement_timeout": timedelta(minutes=1)},
        {"wake_on_data": 5},
    ]  # fmt: skip

    hashes = [pipeline(**fields).declaration_hash for fields in (*VARIETY.values(), *changes)]

    assert len(set(hashes)) == len(hashes)
    assert all(len(one) == 16 for one in hashes)


def test_a_stored_declaration_is_read_where_its_functions_do_not_exist() -> None:
    """A process that only commits has no need of spark_jobs/."""
    body = pipeline(parse=PARSE, record=RECORD).stored().replace("pipelines.access_log", "not.installed.here")

    again = Pipeline.from_stored(body)

    assert again.parse == "not.installed.here:parse"
    with pytest.raises(DeclarationError, match="cannot be imported here"):
        load_function("not.installed.here:parse")


def test_each_sink_says_as_what_it_is_staged_and_when_it_is_shown() -> None:
    text = {"value": "text"}
    topic = KafkaTopic(topic="out", value=Text())
    table, files = PostgresTable(table="rows", columns=text), Files(path="/data/rows", columns=text)

    outputs = pipeline(parse=Text(), sinks=[files, topic, table]).outputs

    assert [(one.name, one.staged_as, one.shown_at_commit) for one in outputs] == [
        ("rows", "rows", True),
        ("kafka:out", topic.outbox("orders").table, False),
        ("files:/data/rows", "files:/data/rows", False),
    ]


def test_an_order_takes_its_type_from_the_record_or_the_declared_columns() -> None:
    with_transform = table(**UPSERT, order_by=("seen", "version"), columns=RECORD | {"version": "int"})

    kinds = order_columns(with_transform, RECORD)

    assert {name: str(kind) for name, kind in kinds.items()} == {
        "_order_seen": "timestamp with time zone",
        "_order_version": "integer",
    }


def test_an_unknown_field_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(DeclarationError, match=r"topic: .*not permitted; did you mean topics\?"):
        KafkaSource(topic="a")  # type: ignore[call-arg]
    with pytest.raises(DeclarationError) as unlike:
        KafkaSource(topics="a", zzz=1)  # type: ignore[call-arg]
    assert "did you mean" not in str(unlike.value)
