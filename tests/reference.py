"""Writes docs/reference.md from the code: ``python -m tests.reference``, or ``make reference``."""

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochline
from epochline.arrow.cast.casting import cast_column
from epochline.declare.base import DeclarationModel
from epochline.declare.columns import _ALIASES, BY_TEXT, SUPPORTED, parse_type
from epochline.errors import ColumnMismatchError

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"

EXAMPLES = {
    "Pipeline": """Pipeline(
    name="orders",
    source=KafkaSource(topics="orders"),
    parse=Json(columns={"id": "bigint", "customer": "text"}),
    sinks=[PostgresTable(table="orders", columns={"id": "bigint", "customer": "text"})],
    bad_records="quarantine",
    schedule=timedelta(minutes=1),
)""",
    "KafkaSource": 'KafkaSource(topics=("orders", "returns"), startup="earliest", records_per_epoch=500_000)',
    "CustomSource": """CustomSource(
    source="epochline.sources.counter:Counter",
    options={"began": "2026-01-01T00:00:00Z", "seconds": 1},
    label="numbers",
)""",
    "Sources": """Sources(
    inputs={
        "orders": Input(source=KafkaSource(topics="orders"), parse=Json(columns={"id": "bigint"})),
        "customers": Input(source=KafkaSource(topics="customers", connection="crm_kafka"), parse=Text()),
    },
    records_per_epoch=500_000,
)""",
    "Input": 'Input(source=KafkaSource(topics="orders"), parse=Text())',
    "FromGroup": 'FromGroup(group="old-job")',
    "FromTimestamp": 'FromTimestamp(timestamp="2026-01-01T00:00:00Z")',
    "FromOffsets": 'FromOffsets(offsets={"orders": {0: 100, 1: 250}})',
    "Bytes": 'Bytes(column="body")',
    "Text": 'Text(column="line")',
    "Json": """Json(
    columns={"id": "bigint", "amount": "numeric(12,2)", "at": "timestamptz", "city": "text"},
    paths={"city": "$.customer.address.city"},
)""",
    "Regex": r'Regex(pattern=r"(?P<host>\S+) (?P<status>\d+)", columns={"status": "smallint"})',
    "Avro": 'Avro(columns={"id": "bigint", "customer": "text"}, registry="epochline_registry")',
    "PostgresTable": """[
    PostgresTable(table="log", columns={"line": "text"}),
    PostgresTable(table="customers", mode="upsert", key="id", columns={"id": "bigint", "name": "text"}),
    PostgresTable(table="totals", mode="add", key="id", measures="n", columns={"id": "bigint", "n": "bigint"}),
    PostgresTable(table="latest", mode="replace", columns={"id": "bigint"}),
]""",
    "KafkaTopic": 'KafkaTopic(topic="orders-clean", value=Json(columns={"id": "bigint"}), key="id")',
    "Files": 'Files(path="/srv/orders", format="parquet", columns={"id": "bigint"})',
    "CustomSink": 'CustomSink(sink="epochline.sinks.files:FileSink", columns={"id": "bigint"}, label="mine")',
    "StateTable": 'StateTable(table="seen", key="id", columns={"id": "bigint", "times": "bigint"})',
    "Windowed": """Windowed(
    time=EventTime(column="at", out_of_orderness=5),
    window=Tumbling(size=60),
    key="shop",
    aggregates={"orders": "count(*)", "money": "sum(amount)"},
    into="orders_per_minute",
    lateness=300,
)""",
    "WindowedQuery": '''WindowedQuery(
    query="""
        SELECT shop, window.start AS window_start, count(*) AS orders, sum(amount) AS money
        FROM {records}
        WHERE amount > 0
        GROUP BY window(at, :size), shop
        HAVING count(*) > 1
    """,
    parameters={"size": "1 minute"},
    time=EventTime(column="at", out_of_orderness=5),
    into="orders_per_minute",
)''',
    "Bounds": "Bounds(least_rows=1, most_quarantined=0.01, most_overwritten=0.5)",
    "Measure": 'Measure(name="revenue", sql="SELECT sum(amount) FROM staged", least=0, change=0.5)',
    "EventTime": 'EventTime(column="at", out_of_orderness=timedelta(seconds=5), idle_after=60)',
    "Tumbling": "Tumbling(size=timedelta(minutes=1))",
    "Sliding": "Sliding(size=timedelta(minutes=10), slide=timedelta(minutes=1))",
    "Session": "Session(gap=timedelta(minutes=30))",
    "Settings": "Settings(timeout=600, minimum_pause=0.5, restart=FixedDelay(attempts=3, delay=10))",
    "FixedDelay": "FixedDelay(attempts=3, delay=10)",
    "FailureRate": "FailureRate(max_failures=3, interval=300, delay=10)",
    "Endless": "Endless(delay=10)",
    "NoRestart": "NoRestart()",
    "Retention": "Retention(quarantined=timedelta(days=90), before_images=timedelta(days=14))",
}
"""A valid example by class, in the order of the page."""

_STATE_FIELDS = ("table", "key", "columns", "keys")
"""The other fields of a target are fixed or refused for state."""

_ARROW = (
    pa.bool_(), pa.int64(), pa.float64(), pa.decimal128(38, 2), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us"),
)  # fmt: skip


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def construct(example: str) -> Any:
    """What an example makes."""
    names = {name: getattr(epochline, name) for name in EXAMPLES}
    return eval(example, {"timedelta": timedelta, **names})  # noqa: S307


def documented(kind: type[DeclarationModel]) -> dict[str, str]:
    """The meaning of each field, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, args = (vars(base).get("__doc__") or "").partition("Args:\n")
        for names, meaning in re.findall(r"^ {8}(\w+(?:, \w+)*): (.*(?:\n {12}.*)*)", args, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found


def fields(kind: type[DeclarationModel]) -> list[str]:
    """The fields that an author may set."""
    return [
        name
        for name in kind.model_fields
        if name != "kind" and (kind.__name__ != "StateTable" or name in _STATE_FIELDS)
    ]


def _lines() -> Iterator[str]:
    yield "# Reference of declarations"
    yield ""
    yield "This page lists what a declaration may contain: each class with its fields, and the column types."
    yield "A field that shows neither *required* nor a default may be left out."
    yield "A duration is a `timedelta`, a number of seconds, or ISO 8601 text such as `PT10S`."
    yield "`make reference` writes the page from the code; do not edit it."
    seen: dict[str, str] = {}
    for name, example in EXAMPLES.items():
        kind = getattr(epochline, name)
        yield from ("", f"## {name}", "", _summary(kind), "")
        if name == "Settings":
            yield "[Each setting](settings.md#each-setting) is explained with its default:"
            yield ", ".join(_signature(kind, field) for field in fields(kind)) + "."
        else:
            yield from _field_lines(kind, seen)
        if fields(kind):
            yield ""
        yield from ("```python", example, "```")
    yield from _column_types()


def _field_lines(kind: type[DeclarationModel], seen: dict[str, str]) -> Iterator[str]:
    """A line for each field. Neighbours share a meaning; what an earlier class explains at length is a link to it."""
    meanings = documented(kind)
    repeated: dict[str, list[str]] = {}
    for meaning, group in groupby(fields(kind), key=meanings.__getitem__):
        names = list(group)
        line = f"- {', '.join(_signature(kind, field) for field in names)}: {_markdown(meaning)}"
        if line in seen and len(meaning.split()) > 6:
            repeated.setdefault(seen[line], []).extend(names)
            continue
        seen[line] = kind.__name__
        yield line
    for earlier, names in repeated.items():
        yield f"- {', '.join(f'`{field}`' for field in names)}: as for [{earlier}](#{earlier.lower()})."


def _signature(kind: type[DeclarationModel], field: str) -> str:
    """The field as in a class: with its type, and its default unless that is empty."""
    info = kind.model_fields[field]
    spelled = f"{field}: {_type(kind, field)}"
    if info.is_required():
        return f"`{spelled}` *required*"
    value = info.get_default(call_default_factory=True)
    if value in (None, (), {}):
        return f"`{spelled.removesuffix(' | None')}`"
    shown = f"{type(value).__name__}()" if isinstance(value, DeclarationModel) else value
    return f"`{spelled} = {shown!r}`" if isinstance(value, str) else f"`{spelled} = {shown}`"


def _column_types() -> Iterator[str]:
    yield from ("", "## Column types", "")
    yield "A `parse` may return any of the named Arrow types for a column; integers and floats of any width count."
    yield "A value that the column cannot hold makes a bad record."
    as_text = ", ".join(f"`{name}`" for name in SUPPORTED if parse_type(name).carrier == "text")
    yield f"COPY carries a table as binary, or as text if it has an array or a column of type {as_text}."
    yield from ("", "| Types (aliases) | `parse` may return |", "|---|---|")
    rows: dict[str, list[str]] = {}
    for spelled in (*SUPPORTED, "numeric(12,2)"):
        aliases = ", ".join(f"`{alias}`" for alias, name in sorted(_ALIASES.items()) if name == spelled)
        taken = ", ".join(f"`{arrow}`" for arrow in _ARROW if _casts(arrow, spelled))
        named = f"`{spelled}` ({aliases})" if aliases else f"`{spelled}`"
        rows.setdefault(taken, []).append(named)
    for taken, types in rows.items():
        yield f"| {', '.join(types)} | {taken} |"
    yield ""
    yield "Times and timestamps may keep fewer digits of a second, as in `timestamp(3)`: a value with more is bad."
    yield "Each type may be an array, as in `text[]`: `parse` may return Arrow lists, also lists of lists, or JSON arrays as"
    yield "text. A transform gets an array as the text of a JSON array, and a `time` as text."
    yield from ("", f"As texts: {', '.join(f'`{name}`' for name in BY_TEXT)}.", "")
    yield "PostgreSQL judges these texts when the epoch is sealed. A text that the type refuses, or would round, cut or read"
    yield "as another value, makes a bad record ([ADR 0046](adr/0046-types-that-only-postgresql-knows.md))."
    yield "A table that exists may have a column of any type, such as an enum: leave out the sink's `columns`, and declare"
    yield "the record's column as `text`."


def _summary(kind: type[DeclarationModel]) -> str:
    return _markdown(" ".join((kind.__doc__ or "").partition("Args:\n")[0].split()))


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _type(kind: type[DeclarationModel], field: str) -> str:
    annotation = next(
        str(base.__annotations__[field]) for base in kind.__mro__ if field in vars(base).get("__annotations__", {})
    )
    spelled = {"Duration": "duration", "Pause": "duration", "Reference": "str", "DeclaredSink": "sink"}
    spelled |= {"Names": "tuple[str, ...]", "ColumnName": "str", "ClassReference": "str"}
    spelled |= dict.fromkeys(("Columns", "OrderedColumns"), "dict[str, str]")
    spelled["AnySource"] = "KafkaSource | CustomSource | Sources"
    spelled["AnyWindows"] = "Windowed | WindowedQuery"
    spelled["Mode"] = "Literal['append', 'upsert', 'add', 'replace']"
    spelled["Repeats"] = "Literal['refuse', 'skip']"
    spelled["OnCancel"] = "Literal['delete', 'retain']"
    tagged = re.findall(r"Annotated\[(\w+), Tag", annotation)
    return re.sub(r"\w+", lambda word: spelled.get(word[0], word[0]), " | ".join(tagged) or annotation)


def _casts(arrow: pa.DataType, spelled: str) -> bool:
    try:
        cast_column("value", pa.array([], arrow), parse_type(spelled))
    except ColumnMismatchError:
        return False
    return True


if __name__ == "__main__":
    PAGE.write_text(page())
