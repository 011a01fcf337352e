"""Reads a SQL query that is grouped by a window of event time, and refuses what epochs cannot compute. Pure.

sqlglot parses the text. Spark parses it again before each epoch and compares (`epochline.spark.windowing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from string import Formatter

import sqlglot
from sqlglot import exp

from epochline.declare.base import repeated
from epochline.declare.columns import END, START
from epochline.declare.event_time import Session, Sliding, Tumbling, Windows
from epochline.declare.sql_dialect import WINDOWS, Query, check_words, sql_of

RECORDS = "records"
"""Name of the placeholder for the epoch's records, as ``spark.sql(query, records=…)`` takes it."""

TOUCH = timedelta(microseconds=1)
"""A query's session is open for so much longer: Spark merges sessions that touch, `Session` those that overlap."""

_TABLE = "epochline_records"
_PART = re.compile(r"\s*(\d+)\s*(microsecond|millisecond|second|minute|hour|day|week)s?\b", re.IGNORECASE)
_CLAUSES = {
    "distinct": "DISTINCT", "order": "ORDER BY", "sort": "SORT BY", "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY", "limit": "LIMIT", "offset": "OFFSET", "joins": "a join", "laterals": "LATERAL VIEW",
    "windows": "WINDOW", "qualify": "QUALIFY", "with_": "WITH", "hint": "a hint", "into": "INTO",
    "sample": "TABLESAMPLE", "pivots": "PIVOT",
}  # fmt: skip
_KNOWN_CLAUSES = frozenset({"expressions", "from_", "where", "group", "having"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQuery:
    """A query that was read."""

    tree: exp.Select
    """sqlglot's tree of the query, with the values of its parameters."""
    time: str
    window: Windows
    key: tuple[str, ...]
    """Columns of the record by which the query groups in addition to the window."""
    results: Mapping[str, exp.Expr]

    @property
    def text(self) -> str:
        """The query as it was read, for ``spark.sql(text, records=…)``."""
        written = sql_of(self.tree).replace("{", "{{").replace("}", "}}")
        return written.replace(f"`{_TABLE}`", f"{{{RECORDS}}}")


def read_query(text: str, parameters: Mapping[str, str]) -> GroupedQuery:
    """Read a query with its parameters; raises ``ValueError`` with the reason if epochs cannot compute it."""
    return _read(text, tuple(sorted(parameters.items())))


@cache
def _read(text: str, parameters: tuple[tuple[str, str], ...]) -> GroupedQuery:
    tree = _parsed(_with_table(text))
    _check_clauses(tree)
    tree = _bound(tree, dict(parameters))
    _check_expressions(tree)
    time, window, key = _group(tree)
    return GroupedQuery(tree=tree, time=time, window=window, key=key, results=_results(tree, key))


def _with_table(text: str) -> str:
    try:
        named = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"a brace that is no placeholder is written twice ({error})") from error
    if named != [RECORDS]:
        raise ValueError(f"write FROM {{{RECORDS}}} once: the epoch's records are the one table of the query")
    return text.format(**{RECORDS: _TABLE})


def _parsed(text: str) -> exp.Select:
    try:
        words = sqlglot.tokenize(text, dialect=Query)
        check_words([(word.text, word.token_type.name) for word in words])
        trees = sqlglot.parse(text, dialect=Query)
    except sqlglot.errors.SqlglotError as error:
        # The message quotes the text with codes for a terminal's colours.
        raise ValueError("this is no SQL: " + re.sub(r"\x1b\[\d*m", "", str(error).splitlines()[0])) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Select):
        raise ValueError("write one SELECT; set operations and other statements are refused")
    return trees[0]


def _check_clauses(tree: exp.Select) -> None:
    for name, clause in tree.args.items():
        if clause and name not in _KNOWN_CLAUSES:
            raise ValueError(f"{_CLAUSES.get(name, name)} is refused: a query is SELECT, WHERE, GROUP BY and HAVING")
    if len(list(tree.find_all(exp.Query))) > 1:
        raise ValueError("a subquery is refused: a query sees an epoch's records alone")
    table = tree.args.get("from_")
    source = None if table is None else table.this
    if not isinstance(source, exp.Table) or any(source.args[name] for name in source.args if name != "this"):
        raise ValueError(f"write FROM {{{RECORDS}}}, without an alias or a join")
    group = tree.args.get("group")
    if group is None or any(group.args[name] for name in group.args if name != "expressions"):
        raise ValueError("write GROUP BY with a window and columns; ALL, ROLLUP, CUBE and GROUPING SETS are refused")


_REFUSED = {
    "Window": "OVER is refused: it needs every record of a window at once, and an epoch keeps only partial results",
    "WithinGroup": "WITHIN GROUP is refused: its result depends on the order of the records",
    "Distinct": "DISTINCT in an aggregate is refused: it needs every value of a window, and an epoch keeps only"
    " partial results",
    "IgnoreNulls": "IGNORE NULLS is refused: it belongs to functions that depend on the order of the records",
    "RespectNulls": "RESPECT NULLS is refused: it belongs to functions that depend on the order of the records",
    "Lambda": "a lambda is refused; compute it in parse, as a column of the record",
    "Subquery": "a subquery is refused: a query sees an epoch's records alone",
    "Parameter": "a session's variable is refused; use parameters=",
    "SessionParameter": "a session's variable is refused; use parameters=",
}


def _check_expressions(tree: exp.Select) -> None:
    for node in tree.walk():
        reason = _REFUSED.get(type(node).__name__)
        if reason is not None:
            raise ValueError(reason)
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            raise ValueError("* is refused: name the columns")


def _bound(tree: exp.Select, parameters: dict[str, str]) -> exp.Select:
    """Put the values of the parameters into the tree; raises ``ValueError`` for one too many or too few."""
    named = {str(marker.name) for marker in tree.find_all(exp.Placeholder)}
    if named != parameters.keys():
        wrong = ", ".join(sorted(named ^ parameters.keys()))
        raise ValueError(
            f"parameters: the query has the markers {sorted(named)}; {wrong or 'one'} is too many or missing"
        )
    for marker in list(tree.find_all(exp.Placeholder)):
        marker.replace(exp.Literal.string(parameters[marker.name]))
    return tree


def _group(tree: exp.Select) -> tuple[str, Windows, tuple[str, ...]]:
    windows, key = [], []
    for group in tree.args["group"].expressions:
        if isinstance(group, exp.Anonymous) and str(group.this).lower() in WINDOWS:
            windows.append(group)
        elif isinstance(group, exp.Column) and not group.table:
            key.append(str(group.name))
        else:
            raise ValueError(
                f"GROUP BY {group.sql(dialect=Query)} is refused: group by a window and columns of the record;"
                " compute others in parse, so that a record without a value is a bad record"
            )
    if len(windows) != 1:
        raise ValueError(
            "group by one window: window(column, '10 seconds'), window(column, '10 seconds', '5 seconds') or"
            " session_window(column, '30 minutes')"
        )
    if repeated(key):
        raise ValueError("GROUP BY names a column twice")
    return (*_window(windows[0]), tuple(key))


def _window(call: exp.Anonymous) -> tuple[str, Windows]:
    name, (column, *durations) = str(call.this).lower(), call.expressions
    texts = [str(text.this) for text in durations if isinstance(text, exp.Literal) and text.is_string]
    if not isinstance(column, exp.Column) or column.table or not texts or len(texts) != len(durations):
        raise ValueError(f"{name}() takes a column and durations as text, such as '10 seconds'")
    lengths = [_duration(text) for text in texts]
    match name, lengths:
        case "session_window", [gap]:
            return str(column.name), Session(gap=gap + TOUCH)
        case "window", [size]:
            return str(column.name), Tumbling(size=size)
        case "window", [size, slide]:
            return str(column.name), Sliding(size=size, slide=slide)
    raise ValueError(f"{name}() has too many arguments: windows are aligned to 1970-01-01T00:00:00Z")


def _duration(text: str) -> timedelta:
    length = timedelta(0)
    rest = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    while part := _PART.match(rest):
        length += timedelta(**{f"{part[2].lower()}s": int(part[1])})
        rest = rest[part.end() :]
    if rest.strip() or not length:
        raise ValueError(f"{text!r} is no duration of a window; write it as '10 seconds' or '1 hour 30 minutes'")
    return length


def _results(tree: exp.Select, key: tuple[str, ...]) -> dict[str, exp.Expr]:
    results: dict[str, exp.Expr] = {}
    for column in tree.expressions:
        is_key = isinstance(column, exp.Column) and column.name in key and not column.table
        if not (is_key or isinstance(column, exp.Alias)):
            raise ValueError(f"name the result column: {column.sql(dialect=Query)} AS …")
        name = str(column.alias_or_name)
        if name in results:
            raise ValueError(f"{name} would be two columns of the result; rename one")
        results[name] = column if is_key else column.this
    return results


def columns_of(tree: exp.Expr) -> Iterator[tuple[exp.Column, str]]:
    """The columns in a tree, each with its name; ``window_start`` and ``window_end`` for those of the window."""
    for column in tree.find_all(exp.Column):
        path = [part.name.lower() for part in column.parts]
        if len(path) == 2 and path[0] in WINDOWS and path[1] in ("start", "end"):
            yield column, START if path[1] == "start" else END
        elif len(path) > 1:
            raise ValueError(f"{'.'.join(path)}: name a column of the record, window.start or window.end")
        else:
            yield column, str(column.name)
