"""F28, F29, F30: every hostile record has one defined outcome, by real PostgreSQL, in the writer's own code.

Each case is an epoch of three records: a good one, the hostile one, a good one. Under `quarantine` its first attempt is
staged and left, and the second commits: a record is in the quarantine once, however often it was read. Under `fail`
the attempt ends with the record's place and the reason, and nothing of it can be seen.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import pyarrow as pa
import pytest

from epochline import Bytes, Json, KafkaSource, Pipeline, PostgresTable, Regex, Text
from epochline.errors import BadRecordError, SealRefusedError
from epochline.protocol.offsets import PlannedRange
from tests.crash.reliability import Recovery
from tests.integration.in_process import InProcess, over_records
from tests.reading import source_batch

_numbers = itertools.count(1)

COLUMNS = {
    "id": "bigint", "name": "text", "small": "smallint", "ratio": "double precision", "price": "numeric(12,2)",
    "day": "date", "at": "timestamptz", "ref": "uuid", "addr": "inet", "extra": "jsonb", "span": "interval",
    "on": "boolean", "raw": "bytea",
}  # fmt: skip
JSON = Json(columns=COLUMNS)
REGEX = Regex(pattern=r"(?P<name>\w+)=(?P<id>-?\d+)", columns={"id": "integer"})
FUNCTION = {name: COLUMNS[name] for name in ("price", "ratio", "at", "day", "small")}
FUNCTIONS = '''
import json
from datetime import datetime, timedelta

import pyarrow as pa


def parse(batch):
    """Python's own JSON, which knows NaN; times as seconds since 1970."""
    read = [json.loads(value) if value else {} for value in batch.column("value").to_pylist()]
    numbers = pa.array([one.get("n") for one in read], pa.float64())
    seconds = pa.array([one.get("s") for one in read], pa.int64())
    return pa.record_batch(
        {
            "price": numbers if not any("big" in one for one in read) else pa.array([1e10] * len(read)),
            "ratio": numbers,
            "at": seconds.cast(pa.timestamp("s", "UTC")),
            "day": pa.array([one.get("d") for one in read], pa.string()),
            "small": pa.array([one.get("small") for one in read], pa.int64()),
            "_error": pa.array([one.get("bad") for one in read], pa.string()),
            "_skip": pa.array(["skip" in one for one in read]),
        }
    )
'''


@dataclass(frozen=True)
class Case:
    """A hostile record; ``reason`` is a part of why it is refused, None where it becomes a row that holds ``row``."""

    name: str
    parse: Any
    value: bytes | None
    reason: str | None = None
    row: dict[str, Any] = field(default_factory=dict)
    good: bytes = b'{"id": 1, "name": "good"}'
    key: bytes | None = b"key"
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int = 1_700_000_000_000_000
    secret: str | None = None
    """A part of the value that no error may show."""


def doc(**members: Any) -> bytes:
    return json.dumps(members).encode()


NOTHING = dict.fromkeys(COLUMNS)
CASES = [
    Case("not JSON", JSON, b'{"id": 1', "not JSON"),
    Case("two documents", JSON, b'{"id": 1} {"id": 2}', "not JSON"),
    Case("no object", JSON, b"[1]", "not a JSON object"),
    Case("empty value", JSON, b"", "not JSON"),
    Case("blank value", JSON, b"  ", "not JSON"),
    Case("no UTF-8", JSON, b'{"name": "\xff canary"}', "not valid UTF-8", secret="canary"),
    Case("a byte NUL", JSON, b'{"name": "canary\0"}', "NUL byte", secret="canary"),
    Case("an escaped NUL", JSON, b'{"name": "canary\\u0000"}', "NUL byte", secret="canary"),
    Case("an escaped NUL in jsonb", JSON, b'{"extra": {"a": "canary\\u0000"}}', "u0000", secret="canary"),
    Case("half a surrogate pair", JSON, b'{"name": "canary\\ud800"}', "surrogate", secret="canary"),
    Case("nested too deeply", JSON, b'{"extra": ' + b"[" * 300 + b"]" * 300 + b"}", "nested"),
    Case("more digits than jsonb takes", JSON, b'{"extra": 1e200000}', "a number out of range", secret="1e200000"),
    Case("a smaller fraction than jsonb takes", JSON, b'{"extra": 1e-20000}', "a number out of range", secret="1e-2"),
    Case("text for a number", JSON, doc(id="canary"), "id: ", secret="canary"),
    Case("number for a text", JSON, doc(name=4711), "name: ", secret="4711"),
    Case("object for a number", JSON, doc(id={"a": "canary"}), "id: ", secret="canary"),
    Case("fraction for an integer", JSON, doc(id=4711.5), "id: ", secret="4711"),
    Case("smallint out of range", JSON, doc(small=40711), "does not fit smallint", secret="40711"),
    Case("bigint out of range", JSON, b'{"id": 9223372036854775808}', "does not fit bigint", secret="922337"),
    Case("numeric out of range", JSON, b'{"price": 12345678901.00}', "does not fit numeric(12,2)", secret="123456"),
    Case("numeric too precise", JSON, b'{"price": 47.111}', "does not fit numeric(12,2)", secret="47.1"),
    Case("NaN is no JSON", JSON, b'{"ratio": NaN}', "NaN is not JSON"),
    Case("Infinity is no JSON", JSON, b'{"ratio": -Infinity}', "Infinity is not JSON"),
    Case("1e400", JSON, b'{"ratio": 1e400}', "out of range", secret="1e400"),
    Case("year 300000", JSON, doc(at="300000-01-01T00:00:00Z"), "at: ", secret="300000-01"),
    Case("year 300000 as a date", JSON, doc(day="300000-01-01"), row={"day": "300000-01-01"}),
    Case("year 6000000 as a date", JSON, doc(day="6000000-01-01"), "day: ", secret="6000000-01"),
    Case("30 February", JSON, doc(day="2023-02-30"), "day: ", secret="02-30"),
    Case("time without zone", JSON, doc(at="2024-01-01T00:00:00"), "at: ", secret="2024-01"),
    Case("before 1970", JSON, doc(at="1969-12-31T23:59:59Z", day="0001-01-01"), row={"day": "0001-01-01"}),
    Case("no uuid", JSON, doc(ref="canary"), "not a uuid", secret="canary"),
    Case("no address", JSON, doc(addr="canary.example"), "not an address", secret="canary"),
    Case("no interval", JSON, doc(span="canary"), "not an interval", secret="canary"),
    Case("no boolean", JSON, doc(on="canary"), "not true or false", secret="canary"),
    Case("no base64", JSON, doc(raw="canary!"), "not base64", secret="canary"),
    Case("no member at all", JSON, b"{}", row=NOTHING),
    Case("null members", JSON, doc(**NOTHING), row=NOTHING),
    Case("null key", JSON, doc(id=5), row={"id": "5"}, key=None),
    Case("empty key", JSON, doc(id=5), row={"id": "5"}, key=b""),
    Case("tombstone", JSON, None, row=NOTHING),
    Case("tombstone with a JSON key", JSON, None, row={"id": "7"}, key=b'{"id": 7}'),
    Case("tombstone with a wrong JSON key", JSON, None, "key: id: ", key=b'{"id": "canary"}', secret="canary"),
    Case("tombstone with null key", JSON, None, row=NOTHING, key=None),
    Case("headers", JSON, doc(id=5), row={"id": "5"}, headers=[("h", None), ("h", b"\xff"), ("", b"")]),
    Case("headers of a bad record", JSON, b"x", "not JSON", headers=[("h", None), ("h", b"\xff"), ("", b""), ("a\0", b"")]),
    Case("no header", JSON, b"x", "not JSON", headers=[]),
    Case("record before 1970", JSON, b"x", "not JSON", timestamp=-1_000_000),
    Case("record of year 9999", JSON, b"x", "not JSON", timestamp=253_402_300_799_000_000),
    Case("10 MB", JSON, doc(name="x" * 10_000_000), row={"name": "x" * 10_000_000}),
    Case("10 MB of no JSON", JSON, b"x" * 10_000_000, "not JSON"),
    Case("text no UTF-8", Text(), b"canary\xc3(", "not valid UTF-8", secret="canary"),
    Case("text with NUL", Text(), b"canary\0", "NUL byte", secret="canary"),
    Case("text empty", Text(), b"", row={"value": ""}),
    Case("text tombstone", Text(), None, row={"value": None}),
    Case("text that COPY could misread", Text(), b'\\N\t\\.\r\n"', row={"value": '\\N\t\\.\r\n"'}),
    Case("bytes of any kind", Bytes(), b"\0\xff\\", row={"value": "\\x00ff5c"}),
    Case("bytes empty", Bytes(), b"", row={"value": "\\x"}),
    Case("bytes tombstone", Bytes(), None, row={"value": None}),
    Case("no match", REGEX, b"canary", "does not match", good=b"a=1", secret="canary"),
    Case("no match of an empty value", REGEX, b"", "does not match", good=b"a=1"),
    Case("match but a line feed", REGEX, b"canary=1\n", "does not match", good=b"a=1", secret="canary"),
    Case("match out of range", REGEX, b"a=2147483648", "does not fit integer", good=b"a=1", secret="2147483648"),
    Case("match no UTF-8", REGEX, b"\xff=1", "not valid UTF-8", good=b"a=1"),
    Case("match with NUL", REGEX, b"a\0=1", "NUL byte", good=b"a=1"),
    Case("match tombstone", REGEX, None, row={"id": None, "name": None}, good=b"a=1"),
    Case("function: NaN for numeric", "poison:parse", b'{"n": NaN}', "not finite", good=b"{}"),
    Case("function: infinity for numeric", "poison:parse", b'{"n": 1e400}', "not finite", good=b"{}"),
    Case("function: numeric out of range", "poison:parse", b'{"n": 12345678901}', "numeric(12,2)", good=b"{}", secret="12345"),
    Case("function: year 300000", "poison:parse", b'{"s": 9404617881600}', "at: ", good=b"{}", secret="300000"),
    Case("function: before 1970", "poison:parse", b'{"s": -1}', row={"at": "1969-12-31 23:59:59+00"}, good=b"{}"),
    Case("function: no date", "poison:parse", b'{"d": "canary"}', "day: ", good=b"{}", secret="canary"),
    Case("function: out of range", "poison:parse", b'{"small": 40711}', "smallint", good=b"{}", secret="40711"),
    Case("function: its own error", "poison:parse", b'{"bad": "no good\\u0000"}', "no good\\0", good=b"{}"),
    Case("function: tombstone", "poison:parse", None, row={"price": None}, good=b"{}"),
    Case("function: empty value", "poison:parse", b"", row={"price": None}, good=b"{}"),
]  # fmt: skip


def batch(one: PlannedRange, values: Sequence[Any]) -> pa.RecordBatch:
    """Source records at the offsets of a range, as Spark's worker hands them over."""
    offsets = range(one.range.start, one.range.until)
    chosen = [values[offset] for offset in offsets]
    return source_batch(
        one.tp, offsets, [each.value for each in chosen],
        timestamp=[each.timestamp for each in chosen], key=[each.key for each in chosen],
        headers=[each.headers and [{"key": k, "value": v} for k, v in each.headers] for each in chosen],
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterable[None]:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "poison.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def world(dsn: str, records: list[Case], sink: PostgresTable, *, create: bool = True, **declared: Any) -> InProcess:
    name = f"poison{next(_numbers)}"
    sink = sink.model_copy(update={"table": f"{name}_{sink.table}"})
    pipeline = Pipeline(name=name, source=KafkaSource(topics=name), sinks=[sink], **declared)
    return over_records(dsn, pipeline, records, batch, create=create)


def table_of(one: InProcess) -> str:
    return one.pipeline.targets[0].table


def quarantined(one: InProcess) -> list[int]:
    found = one.sql('SELECT "offset" FROM epochline.quarantine WHERE pipeline = %s ORDER BY 1', one.pipeline.name)
    return [offset for (offset,) in found]


def records(*values: bytes | None) -> list[Case]:
    return [Case("", JSON, value) for value in values]


def of_case(dsn: str, case: Case, policy: str) -> InProcess:
    good = Case("good", case.parse, case.good)
    record = FUNCTION if isinstance(case.parse, str) else {}
    sink = PostgresTable(table="t", columns=record or case.parse.record)
    return world(dsn, [good, case, good], sink, parse=case.parse, record=record, bad_records=policy)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.fault("F28", "F29")
def test_a_hostile_record_is_a_row_or_quarantined_once(dsn: str, case: Case, recovery: Recovery) -> None:
    """F28, F29 with the policy `quarantine`, one attempt given up on the way: offset, reason and bytes are kept."""
    one = of_case(dsn, case, "quarantine")
    table = table_of(one)
    planned, run, _ = one.staged()
    recovery.last_fault()
    one.finish(planned, run)  # as a retry does: the first attempt is fenced

    refused = case.reason is not None
    rows = one.sql(f"SELECT _offset, to_jsonb(t) FROM {table} t ORDER BY _offset")
    assert [offset for offset, _ in rows] == ([0, 2] if refused else [0, 1, 2])
    if not refused:
        names = ", ".join(f'"{name}"::text' for name in case.row)
        shown = one.sql(f"SET TimeZone = 'UTC'; SELECT {names} FROM {table} WHERE _offset = 1")
        assert dict(zip(case.row, shown[0], strict=True)) == case.row
    kept = one.sql(
        'SELECT "offset", reason, key, value, headers, extract(epoch FROM record_timestamp)::numeric(20,6)'
        " FROM epochline.quarantine WHERE pipeline = %s",
        one.pipeline.name,
    )
    assert len(kept) == refused
    if case.reason is not None:
        offset, reason, key, value, headers, timestamp = kept[0]
        assert offset == 1
        assert case.reason in reason
        assert "\ue000" not in reason
        assert (key and bytes(key), value if value is None else bytes(value)) == (case.key, case.value)
        assert (headers is None) == (case.headers is None)
        assert len(headers or []) == len(case.headers or [])
        assert timestamp * 1_000_000 == case.timestamp
    names = "records_read, records_passed, records_skipped, records_quarantined, rows_written"
    counts = one.sql(f"SELECT {names} FROM epochline.epoch WHERE pipeline = %s", one.pipeline.name)
    assert counts == [(3, 3 - refused, 0, int(refused), 3 - refused)]
    recovery.took()


@pytest.mark.parametrize("case", [case for case in CASES if case.reason], ids=lambda case: case.name)
@pytest.mark.fault("F28", "F29")
def test_with_the_policy_fail_the_attempt_names_the_record_and_keeps_nothing(dsn: str, case: Case) -> None:
    """F28, F29, SEC-5: topic, partition, offset and reason, and no value of the record."""
    one = of_case(dsn, case, "fail")
    planned, run = one.planned()
    ticket = one.attempt(planned, run)

    with pytest.raises(BadRecordError) as raised:
        one.stage(planned, ticket)

    said = str(raised.value)
    assert said.startswith(f"{one.pipeline.name}-0 offset 1: ")
    assert case.reason
    assert case.reason in said
    assert case.secret is None or case.secret not in said
    assert len(said) < 400
    with pytest.raises(SealRefusedError):
        one.seal(ticket, run)
    one.abort(1, run, reason="a bad record")
    assert one.sql(f"SELECT count(*) FROM {table_of(one)}") == [(0,)]
    assert quarantined(one) == []


def test_a_skip_is_counted_and_is_neither_row_nor_quarantine(dsn: str) -> None:
    one = of_case(dsn, Case("skip", "poison:parse", b'{"skip": 1}', good=b"{}"), "fail")

    counts = one.epoch().epoch.counts

    assert (counts.passed, counts.skipped, counts.quarantined) == (2, 1, 0)
    assert one.sql(f"SELECT count(*) FROM {table_of(one)}") == [(2,)]


UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id", "columns": {"id": "bigint", "name": "text"}}


@pytest.mark.parametrize(
    ("tombstone", "left", "set_aside"), [("delete", [2], []), ("ignore", [1, 2], []), ("quarantine", [1, 2], [2])]
)
@pytest.mark.fault("F29")
def test_a_tombstone_does_to_an_upsert_target_what_is_declared(
    dsn: str, tombstone: str, left: list[int], set_aside: list[int]
) -> None:
    """F29: a null value deletes, is ignored, or is quarantined; without a key it is quarantined where it would delete."""
    given = [*records(doc(id=1, name="a"), doc(id=2, name="b")), Case("", JSON, None, key=doc(id=1))]
    sink = PostgresTable(table="u", tombstone=tombstone, **UPSERT)
    one = world(dsn, given, sink, parse=JSON, bad_records="quarantine")
    one.epoch()

    assert one.sql(f"SELECT id FROM {table_of(one)} ORDER BY id") == [(id_,) for id_ in left]
    assert quarantined(one) == set_aside


def test_a_tombstone_that_names_no_key_is_quarantined(dsn: str) -> None:
    given = [*records(doc(id=1)), Case("", JSON, None, key=None), Case("", JSON, None, key=b"no object")]
    one = world(dsn, given, PostgresTable(table="u", **UPSERT), parse=JSON, bad_records="quarantine")
    one.epoch()

    assert quarantined(one) == [1, 2]


def test_sums_take_a_null_for_nothing_and_quarantine_a_null_key(dsn: str) -> None:
    columns = {"name": "text", "id": "bigint"}
    given = records(doc(name="a", id=1), doc(name="a"), doc(id=7), None)
    sink = PostgresTable(table="s", mode="add", key="name", measures="id", columns=columns)
    one = world(dsn, given, sink, parse=JSON, bad_records="quarantine")
    one.epoch()

    assert one.sql(f"SELECT name, id FROM {table_of(one)}") == [("a", 1)]
    assert quarantined(one) == [2, 3]


@pytest.mark.parametrize("policy", ["quarantine", "fail"])
def test_what_an_existing_table_asks_of_a_value_is_asked_of_each_record(dsn: str, policy: str) -> None:
    """Labels of an enum and NOT NULL: a wrong one is its record's error, and fails neither COPY nor the seal for all."""
    columns = {"id": "bigint", "name": "text", "small": "smallint"}
    given = records(
        doc(id=1, name="it's", small=1), doc(id=2, name="canary", small=1), doc(id=3, name=None, small=1),
        doc(id=4, name="sad, really"), doc(name="it's", small=2),
    )  # fmt: skip
    one = world(dsn, given, PostgresTable(table="e"), create=False, parse=Json(columns=columns), bad_records=policy)
    name = one.pipeline.name
    one.sql(f"CREATE TYPE \"{name} Mood\" AS ENUM ('it''s', 'sad, really')")
    one.sql(
        f'CREATE TABLE {name}_e (id bigint, name "{name} Mood", small smallint NOT NULL DEFAULT 5, _topic text,'
        " _partition integer, _offset bigint, _row integer, _epoch bigint)"
    )
    if policy == "fail":
        said = "offset 1: .*: name: a value does not fit .*not a label of the enum"
        with pytest.raises(BadRecordError, match=said) as raised:
            one.epoch()
        assert "canary" not in str(raised.value)
        return
    one.epoch()

    assert one.sql(f"SELECT id, name::text FROM {name}_e ORDER BY _offset") == [(1, "it's"), (3, None), (None, "it's")]
    reasons = one.sql('SELECT "offset", reason FROM epochline.quarantine WHERE pipeline = %s ORDER BY 1', name)
    assert [offset for offset, _ in reasons] == [1, 3]
    assert "not a label of the enum" in reasons[0][1]
    assert reasons[1][1] == f"{name}_e: NULL in small, which the table declares NOT NULL"


@pytest.mark.fault("F30")
def test_a_row_of_two_hundred_columns_is_a_row(dsn: str) -> None:
    """F30."""
    columns = {f"c{number}": ("text", "bigint", "numeric", "jsonb")[number % 4] for number in range(200)}
    values = {name: f"v{name}" if kind == "text" else 7 for name, kind in columns.items()}
    given = records(doc(**values), doc(**values | {"c199": None, "c0": 5}), b"{}")
    sink = PostgresTable(table="w", columns=columns)
    one = world(dsn, given, sink, parse=Json(columns=columns), bad_records="quarantine")
    one.epoch()

    assert one.sql(f"SELECT c0, c1, c198, c199::text FROM {table_of(one)} ORDER BY _offset") == [
        ("vc0", 7, 7, "7"), (None, None, None, None),
    ]  # fmt: skip
    assert quarantined(one) == [1]


@pytest.mark.fault("F30")
def test_a_million_records_in_one_partition_need_no_more_memory_than_a_few(dsn: str, recovery: Recovery) -> None:
    """B2, F30: the writer holds a batch at a time, whatever the partition holds; the other partitions hold nothing."""
    total, at_once = 1_000_000, 10_000
    one = world(dsn, [], PostgresTable(table="m", columns={"value": "text"}), parse=Text())
    for partition, count in ((1, total), (2, 0)):
        one.source.produce(one.pipeline.name, partition, count)
    payload = pa.array([b"x" * 200] * at_once, pa.binary())
    held: list[int] = []

    def read(planned: PlannedRange) -> Iterable[pa.RecordBatch]:
        for start in range(planned.range.start, planned.range.until, at_once):
            if start in (total // 10, total - at_once):
                held.append(psutil.Process().memory_info().rss)
            place = {
                "topic": pa.array([planned.tp.topic] * at_once),
                "partition": pa.array([planned.tp.partition] * at_once, pa.int32()),
                "offset": pa.array(range(start, start + at_once), pa.int64()),
            }
            yield pa.record_batch({**place, "value": payload})

    one.read = read
    recovery.last_fault()
    receipt = one.epoch()
    recovery.took()

    assert receipt.epoch.counts.passed == total
    assert one.sql(f"SELECT count(*), count(DISTINCT _offset) FROM {table_of(one)}") == [(total, total)]
    assert len(held) == 2
    more = held[1] - held[0]
    assert more < 64 << 20, f"{more} bytes more are held after a million records of 200 than after a tenth of them"
