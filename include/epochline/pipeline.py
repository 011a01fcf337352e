"""The declaration of a pipeline, as a user writes it. Pure: validated where it is written, before any server is asked.

A declaration can be written as JSON and read back (`Pipeline.stored`, `Pipeline.from_stored`): the ledger keeps it by
its hash, and the Spark job reads it from there, so that an attempt runs what was planned.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from epochline.columns import INTEGERS, LINEAGE, ColumnType, parse_type
from epochline.errors import DeclarationError
from epochline.names import MAX_IDENTIFIER_BYTES, order_column, split_table
from epochline.parsing import ReadyMadeParser

# Set while a declaration is read back from the ledger: it was checked when it was declared, and the reader may be
# a process that has no need of the functions it names. (pydantic's own context does not reach nested models here.)
_reading_back: ContextVar[bool] = ContextVar("reading_back", default=False)

_REFERENCE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DeclarationError(_readable(type(self).__name__, fields, error)) from error


def _readable(kind: str, fields: dict[str, Any], error: ValidationError) -> str:
    name = fields.get("name") or fields.get("table") or ""
    problems = []
    for one in error.errors(include_url=False):
        where = ".".join(str(step) for step in one["loc"])
        what = str(one["msg"]).removeprefix("Value error, ")
        problems.append(f"{where}: {what}" if where else what)
    return f"{kind}{f' {name!r}' if name else ''} is declared wrongly. " + "; ".join(problems)


def _check_identifier(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError("a name must not be empty or hold a NUL")
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise ValueError(f"{name!r} is longer than PostgreSQL's {MAX_IDENTIFIER_BYTES} bytes; shorten it")
    return name


def _check_columns(columns: dict[str, str]) -> dict[str, str]:
    checked = {}
    for name, text in columns.items():
        _check_identifier(name)
        if name.startswith("_"):
            raise ValueError(f"{name!r} begins with an underscore, which is kept for epochline's own columns")
        checked[name] = str(parse_type(text))
    return checked


def _check_reference(reference: str) -> str:
    """A function named ``module:function``; named, not imported, so that parsing a DAG imports nothing heavy."""
    if not _REFERENCE.match(reference):
        raise ValueError(f"write it as 'pipelines.my_pipeline:my_function', got {reference!r}")
    if _reading_back.get():
        return reference
    module, _, function = reference.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(
            f"there is no module {module!r}; put the function into"
            f" spark_jobs/{module.replace('.', '/')}.py, and spark_jobs on PYTHONPATH"
        )
    tree = ast.parse(Path(spec.origin).read_bytes())
    if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
        raise ValueError(f"{spec.origin} defines no function {function!r}")
    return reference


class KafkaSource(_Declared):
    """Which topics a pipeline reads, where it begins, and how much an epoch takes at most.

    Args:
        topics: names of topics. Either this or ``pattern``.
        pattern: regular expression that whole topic names match; topics that match later join at offset 0.
        startup: where a topic begins that the ledger does not know yet: ``earliest`` or ``latest``. Resolved once,
            then kept as the partition's origin.
        records_per_epoch: most offsets in one epoch, shared between partitions in proportion to their backlog.
        gaps_expected: declare that offsets without a record are normal although the broker does not say so.
        connection: id of the Airflow connection of the brokers.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    startup: Literal["earliest", "latest"] = "earliest"
    records_per_epoch: int = Field(default=1_000_000, gt=0)
    gaps_expected: bool = False
    connection: str = "epochline_kafka"

    @field_validator("topics", mode="before")
    @classmethod
    def _one_topic_may_stand_alone(cls, topics: Any) -> Any:
        return (topics,) if isinstance(topics, str) else topics

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> Self:
        if bool(self.topics) == bool(self.pattern):
            raise ValueError("give either topics or pattern, and not both")
        for topic in self.topics:
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
                raise ValueError(f"topics: Kafka allows no topic named {topic!r} (letters, digits, . _ -, up to 249)")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics: a topic is named twice")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern: not a regular expression: {error}") from error
        return self


Mode = Literal["append", "upsert", "add", "replace"]


class PostgresTable(_Declared):
    """One target table and what writing to it means (protocol, "What a sink mode means").

    Args:
        table: ``table`` (in ``public``) or ``schema.table``.
        mode: ``append``; ``upsert`` by ``key``, the highest ``order_by`` winning; ``add``, which sums ``measures`` per
            ``key``; ``replace``, which puts the epoch's rows in place of all rows.
        columns: names and PostgreSQL types; ``epochline migrate`` makes the table. None: the table exists, and its
            columns are taken from the database at every plan.
        key: columns of the key (``upsert``, ``add``).
        order_by: columns whose highest value wins (``upsert``); by default the record's offset.
        measures: columns that are summed (``add``): integer or numeric.
        tombstone: what a record without a value does to an upsert target; ``delete`` unless said otherwise.
        lineage: whether the rows of the table carry ``_topic, _partition, _offset, _row, _epoch``.
        aggregated: rows of a ``transform`` that belong to no single record: they carry ``_epoch`` alone.
        select: ``module:function`` from parsed batch to this sink's batch (same rows, same order); by default
            the columns are taken by name.
    """

    table: str
    mode: Mode = "append"
    columns: dict[str, str] | None = None
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    tombstone: Literal["delete", "ignore", "quarantine"] | None = None
    lineage: bool = True
    aggregated: bool = False
    select: str | None = None

    @field_validator("key", "order_by", "measures", mode="before")
    @classmethod
    def _one_name_may_stand_alone(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("table")
    @classmethod
    def _table_is_a_name(cls, table: str) -> str:
        for part in split_table(table):
            _check_identifier(part)
        if split_table(table)[0] in (
            "epochline",
            "epochline_staging",
            "pg_catalog",
            "information_schema",
            "pg_temp",
        ):
            raise ValueError(f"the schema of {table!r} is not for targets")
        return table

    @field_validator("columns")
    @classmethod
    def _columns_are_known(cls, columns: dict[str, str] | None) -> dict[str, str] | None:
        if columns is not None and not columns:
            raise ValueError("name at least one, or leave it out for a table that exists")
        return None if columns is None else _check_columns(columns)

    @field_validator("select")
    @classmethod
    def _select_exists(cls, select: str | None) -> str | None:
        return None if select is None else _check_reference(select)

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> Self:
        wanted = {"upsert": {"key"}, "add": {"key", "measures"}}.get(self.mode, set())
        allowed = wanted | ({"order_by"} if self.mode == "upsert" else set())
        for field in ("key", "measures", "order_by"):
            given = getattr(self, field)
            if field in wanted and not given:
                raise ValueError(f"{field}: mode {self.mode!r} needs it")
            if given and field not in allowed:
                raise ValueError(f"{field}: mode {self.mode!r} has no use for it; take it out")
        if self.tombstone is not None and self.mode != "upsert":
            raise ValueError(f"tombstone: only mode 'upsert' knows tombstones, not {self.mode!r}")
        if self.mode == "add" and self.aggregated:
            raise ValueError("aggregated: rows of mode 'add' are sums already; take it out")
        if self.columns is None:
            return self
        for field in ("key", "measures"):
            strangers = [name for name in getattr(self, field) if name not in self.columns]
            if strangers:
                raise ValueError(f"{field}: {', '.join(strangers)} is not among the columns")
        for name in self.measures:
            if parse_type(self.columns[name]).name not in INTEGERS | {"numeric"}:
                raise ValueError(
                    f"measures: {name} is {self.columns[name]}; only integer and numeric columns add exactly"
                )
        if self.mode == "add":
            neither = [c for c in self.columns if c not in (*self.key, *self.measures)]
            if neither or set(self.key) & set(self.measures):
                raise ValueError(
                    f"columns: in mode 'add' each is of the key or a measure; check {', '.join(neither) or 'key'}"
                )
        return self

    @property
    def on_tombstone(self) -> Literal["delete", "ignore", "quarantine"] | None:
        """What a record without a value does; None where the mode takes it as a row like any other."""
        return (self.tombstone or "delete") if self.mode == "upsert" else None

    @property
    def carried_lineage(self) -> dict[str, str]:
        """The ``_`` columns that this sink's staging and target carry beside the declared ones."""
        if self.mode == "add" or not self.lineage:
            return {}
        return {"_epoch": LINEAGE["_epoch"]} if self.aggregated else dict(LINEAGE)

    def __str__(self) -> str:
        return self.table


class Pipeline(_Declared):
    """A pipeline: one source, a parse, perhaps a transform, one or more sinks, and when it runs.

    Args:
        name: letters, digits, ``_``, ``-`` and ``.``; also the DAG's id.
        source: where records come from.
        parse: a ready-made parser (`Bytes`, `Text`, `Json`, `Regex`), or ``module:function`` from Arrow record batch
            (``topic, partition, offset, timestamp, timestamp_type, key, value, headers``) to Arrow record batch,
            one row per input row, in order.
        record: columns and PostgreSQL types of what the function ``parse`` gives (not for a ready-made parser).
        explode: name of a list column of ``parse`` whose elements become rows of their own, numbered ``_row``.
        transform: ``module:function`` from the parsed DataFrame to a DataFrame, or to a dict by table.
        sinks: the target tables.
        bad_records: ``fail`` the epoch, or ``quarantine`` the record with its bytes and the reason.
        schedule: Airflow schedule: a ``timedelta``, a cron text, ``@continuous``, or None for manual runs.
        postgres_connection, spark_connection: Airflow connection ids.
        pre_commit_timeout: after this Airflow ends a staging task.
        retries, retry_delay: Airflow's retries of each task.
        commit_statement_timeout, lock_timeout: of the commit's transaction.
        spark_conf: further Spark settings.
        tags: tags of the DAG.
    """

    name: str
    source: KafkaSource
    parse: str | ReadyMadeParser
    sinks: tuple[PostgresTable, ...] = Field(min_length=1)
    record: dict[str, str] = Field(default_factory=dict)
    explode: str | None = None
    transform: str | None = None
    bad_records: Literal["fail", "quarantine"] = "fail"
    schedule: timedelta | str | None = None
    postgres_connection: str = "epochline_postgres"
    spark_connection: str = "spark_default"
    pre_commit_timeout: timedelta = timedelta(hours=1)
    retries: int = Field(default=2, ge=0)
    retry_delay: timedelta = timedelta(seconds=10)
    commit_statement_timeout: timedelta = timedelta(minutes=15)
    lock_timeout: timedelta = timedelta(seconds=30)
    spark_conf: dict[str, str] = Field(default_factory=dict)
    tags: tuple[str, ...] = ("epochline",)

    @field_validator("name")
    @classmethod
    def _name_is_a_dag_id(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
            raise ValueError(f"{name!r}: up to 100 letters, digits, _ . -, beginning with a letter or digit")
        return name

    @field_validator("schedule", mode="before")
    @classmethod
    def _duration_may_be_text(cls, schedule: Any) -> Any:
        if isinstance(schedule, str) and re.match(r"^-?P[\dT]", schedule):
            schedule = TypeAdapter(timedelta).validate_python(schedule)
        if isinstance(schedule, timedelta) and schedule <= timedelta(0):
            raise ValueError(f"an interval must be longer than nothing, got {schedule}")
        return schedule

    @field_validator("record")
    @classmethod
    def _record_is_known(cls, record: dict[str, str]) -> dict[str, str]:
        return _check_columns(record)

    @field_validator("parse", "transform")
    @classmethod
    def _functions_exist(cls, value: Any) -> Any:
        return _check_reference(value) if isinstance(value, str) else value

    @field_validator("sinks", mode="before")
    @classmethod
    def _one_sink_may_stand_alone(cls, sinks: Any) -> Any:
        return (sinks,) if isinstance(sinks, PostgresTable) else sinks

    @model_validator(mode="after")
    def _record_and_sinks_agree(self) -> Self:
        if isinstance(self.parse, str) and not self.record:
            raise ValueError("record: say which columns and types the function gives that parse names")
        if not isinstance(self.parse, str) and self.record:
            raise ValueError("record: a ready-made parser brings its own columns; take it out")
        if not isinstance(self.parse, str):
            try:
                _check_columns(self.parse.record)
            except ValueError as error:
                raise ValueError(f"parse: {error}") from error
        tables = [split_table(sink.table) for sink in self.sinks]
        if len(set(tables)) != len(tables):
            raise ValueError("sinks: a table is named twice")
        for sink in self.sinks:
            self._check_sink(sink)
        return self

    def _check_sink(self, sink: PostgresTable) -> None:
        if self.transform is not None:
            if sink.select is not None:
                raise ValueError(f"sinks.{sink}.select: with a transform, give each table its rows there")
            missing = [name for name in sink.order_by if name not in {**self.parsed_columns, **(sink.columns or {})}]
            if missing:
                raise ValueError(
                    f"sinks.{sink}.order_by: {', '.join(missing)} is a column neither of the record nor of the table,"
                    " so"
                    " its type is not known; name it in columns"
                )
            return
        if sink.aggregated:
            raise ValueError(f"sinks.{sink}.aggregated: only rows of a transform are aggregated")
        columns = self.parsed_columns
        missing = [name for name in sink.order_by if name not in columns]
        if missing:
            raise ValueError(f"sinks.{sink}.order_by: {', '.join(missing)} is not a column of the record")
        if sink.select is None and sink.columns is not None:
            missing = [name for name in sink.columns if name not in columns]
            if missing:
                raise ValueError(
                    f"sinks.{sink}.columns: the record has no {', '.join(missing)}; it has {', '.join(columns)}."
                    " Rename them in parse, or give the sink a select"
                )

    @property
    def parsed_columns(self) -> dict[str, str]:
        """Columns and types of the parsed record."""
        return self.record if isinstance(self.parse, str) else self.parse.record

    def sink(self, table: str) -> PostgresTable:
        """The sink that writes ``table``."""
        return next(sink for sink in self.sinks if sink.table == table)

    @property
    def consumer_group(self) -> str:
        """The consumer group that mirrors the heads for monitors (S11); it is never read as a start."""
        return f"epochline.{self.name}"

    def stored(self) -> str:
        """The declaration as canonical JSON: what the ledger keeps and `declaration_hash` is made of."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_stored(cls, body: str) -> Pipeline:
        """Read a declaration from the ledger; the functions it names are not looked up again."""
        reading = _reading_back.set(True)
        try:
            return cls.model_validate_json(body)
        finally:
            _reading_back.reset(reading)

    @property
    def declaration_hash(self) -> str:
        """Sixteen hexadecimal digits that change with any field of the declaration."""
        return hashlib.sha256(self.stored().encode()).hexdigest()[:16]


def order_columns(sink: PostgresTable, record: dict[str, str]) -> dict[str, ColumnType]:
    """The ``_order_…`` columns of an upsert sink with a declared order, by name."""
    kinds = {**(sink.columns or {}), **record}
    return {order_column(name): parse_type(kinds[name]) for name in sink.order_by if name in kinds}


def load_function(reference: str) -> Callable[..., Any]:
    """Import the function that a declaration names as ``module:function``.

    Raises:
        DeclarationError: the module cannot be imported or has no such function.
    """
    module, _, name = reference.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DeclarationError(
            f"{reference}: cannot be imported here ({error}). Is spark_jobs/ on PYTHONPATH of this process?"
        ) from error
    return loaded
