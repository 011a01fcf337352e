"""Declaration of target tables."""

from __future__ import annotations

from operator import not_
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import (
    ColumnName,
    Columns,
    DeclarationModel,
    Names,
    Reference,
    check_identifier,
    refuse_names,
)
from epochline.declare.columns import INTEGERS, LINEAGE, STAGED_LINEAGE, ColumnType, parse_type
from epochline.declare.names import order_column, split_table
from epochline.declare.specs import SinkSpec, TableSpec

Mode = Literal["append", "upsert", "add", "replace"]
Repeats = Literal["refuse", "skip"]
INSERT_TIME = "timestamp with time zone"


class PostgresTable(DeclarationModel):
    """One target table and its mode.

    Args:
        table: ``table`` (in ``public``) or ``schema.table``.
        mode: ``append``; ``upsert`` by ``key``, where the highest ``order_by`` wins; ``add``, which sums ``measures``
            per ``key``; ``replace``, which replaces all rows by the epoch's rows.
        columns: names and PostgreSQL types, from which ``epochline migrate`` creates the table. None: the table
            exists, its keys and its owner are its own, and every plan reads its columns from the database.
        key: columns of the key (``upsert``, ``add``). In mode ``append`` a unique key: the business key, or the place
            of the record, ``("_topic", "_partition", "_offset", "_row")``.
        repeats: with a ``key`` in mode ``append``: ``refuse`` makes a repeat a bad record; ``skip`` keeps the first
            row, and counts the others (docs/sinks.md).
        order_by: columns whose highest value wins (``upsert``); by default the record's offset. A column ``_order_…``
            of the same type, which `epochline migrate` makes, keeps each value for later epochs. In a table that exists
            without it, the order counts within an epoch alone, and a later epoch's row wins.
        measures: columns to sum (``add``): integer or numeric.
        tombstone: what a record without a value does to an upsert target; by default ``delete``. A row from ``parse``
            or ``transform`` with a true ``_deleted`` deletes its key in any case.
        lineage: whether the rows of the table carry ``_topic, _partition, _offset, _row, _epoch``.
        aggregated: whether a ``transform`` makes rows of no single record; they carry no lineage, in a table only
            ``_epoch``.
        insert_time: name of a ``timestamptz`` column, not among ``columns``, for the time of the epoch's plan.
        before_images: of how many newest epochs replaced rows are kept for ``epochline restore`` (``upsert``,
            ``add``).
        keep_unavailable: whether a column keeps its value where `Json` or `Avro` reads ``unavailable``, or a function
            ``parse`` names it in the list ``_unavailable`` (``upsert`` with lineage, no ``transform``; docs/poison.md).
        select: ``module:function`` from parsed batch to this sink's batch (same rows, same order); by default columns
            are taken by name.
    """

    table: str
    mode: Mode = "append"
    columns: Columns | None = None
    key: Names = ()
    repeats: Repeats | None = Field(default=None, exclude_if=not_)
    order_by: Names = ()
    measures: Names = ()
    tombstone: Literal["delete", "ignore", "quarantine"] | None = None
    lineage: bool = True
    aggregated: bool = False
    insert_time: ColumnName | None = Field(default=None, exclude_if=not_)
    before_images: int = Field(default=0, ge=0)
    keep_unavailable: bool = Field(default=False, exclude_if=not_)
    select: Reference | None = None

    @field_validator("table")
    @classmethod
    def _table_is_a_name(cls, table: str) -> str:
        for part in split_table(table):
            check_identifier(part)
        schema = split_table(table)[0]
        # Schemas with the prefix pg_ are PostgreSQL's own: its catalogue, and the temporary tables of other sessions.
        if schema in ("epochline", "epochline_staging", "information_schema") or schema.startswith("pg_"):
            raise ValueError(f"the schema of {table!r} is reserved")
        return table

    @field_validator("columns")
    @classmethod
    def _columns_are_named(cls, columns: dict[str, str] | None) -> dict[str, str] | None:
        if columns is not None and not columns:
            raise ValueError("name at least one column, or leave columns out for a table that exists")
        return columns

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> Self:
        wanted = {"upsert": {"key"}, "add": {"key", "measures"}}.get(self.mode, set())
        allowed = wanted | {"upsert": {"order_by"}, "append": {"key"}}.get(self.mode, set())
        for field in ("key", "measures", "order_by"):
            value = getattr(self, field)
            if field in wanted and not value:
                raise ValueError(f"{field}: mode {self.mode!r} needs it")
            if value and field not in allowed:
                raise ValueError(f"{field}: not supported in mode {self.mode!r}; remove it")
        self._check_unique_key()
        if self.keep_unavailable and (self.mode != "upsert" or not self.lineage or self.aggregated or self.select):
            raise ValueError(
                "keep_unavailable: supported in mode 'upsert' with lineage and without a select; remove it"
            )
        if self.insert_time is not None and (self.mode == "add" or self.insert_time in (self.columns or {})):
            raise ValueError("insert_time: give a column that is not among columns; mode 'add' has none")
        if self.tombstone is not None and self.mode != "upsert":
            raise ValueError(f"tombstone: supported in mode 'upsert', not {self.mode!r}")
        if self.before_images and self.mode not in ("upsert", "add"):
            raise ValueError(f"before_images: not supported in mode {self.mode!r}; remove it")
        if self.mode == "add" and self.aggregated:
            raise ValueError("aggregated: rows of mode 'add' are sums already; remove it")
        if self.columns is None:
            return self
        for field in ("key", "measures"):
            available = {*self.columns, *(STAGED_LINEAGE if self.key_is_place else ())}
            strangers = [name for name in getattr(self, field) if name not in available]
            refuse_names(f"{field}:", strangers, " is not among the columns")
        for name in self.measures:
            if parse_type(self.columns[name]).name not in INTEGERS | {"numeric"}:
                kind = self.columns[name]
                raise ValueError(f"measures: {name} is {kind}; only integer and numeric columns add exactly")
        if self.mode == "add":
            neither = [column for column in self.columns if column not in (*self.key, *self.measures)]
            if neither or set(self.key) & set(self.measures):
                raise ValueError(
                    "columns: in mode 'add' each column belongs to the key or is a measure; check"
                    f" {', '.join(neither) or 'key'}"
                )
        return self

    def _check_unique_key(self) -> None:
        if self.mode == "append" and self.key and self.repeats is None:
            raise ValueError("repeats: a key in mode 'append' needs it: 'refuse' or 'skip'")
        if self.repeats is not None and (self.mode != "append" or not self.key):
            raise ValueError("repeats: supported with a key in mode 'append'")
        if self.key_is_place and (not self.lineage or self.aggregated):
            raise ValueError("key: the record's place needs a sink with lineage whose rows belong to records")
        if self.key_is_place and self.repeats == "skip":
            # Ranges never overlap, so a repeat is a defect, or a topic that was created again: never a row to skip.
            raise ValueError("repeats: a repeat of a record's place is refused; write repeats='refuse'")
        if self.repeats == "skip" and self.aggregated:
            raise ValueError("repeats: aggregated rows have no order in which one is the first; write 'refuse'")

    @property
    def key_is_place(self) -> bool:
        """Whether the unique key of an append target is the place of the record and the number of its row."""
        return self.mode == "append" and self.key == tuple(STAGED_LINEAGE)

    @property
    def on_tombstone(self) -> Literal["delete", "ignore", "quarantine"] | None:
        """What a record without a value does; None if the mode treats it as an ordinary row."""
        return (self.tombstone or "delete") if self.mode == "upsert" else None

    @property
    def carried_lineage(self) -> dict[str, str]:
        """The lineage columns that this sink's target carries in addition to the declared ones."""
        if self.mode == "add" or not self.lineage:
            return {}
        return {"_epoch": LINEAGE["_epoch"]} if self.aggregated else dict(LINEAGE)

    @property
    def added_columns(self) -> dict[str, str]:
        """The columns that the commit writes beyond the declared ones: the lineage, and the time of the epoch."""
        return self.carried_lineage | ({self.insert_time: INSERT_TIME} if self.insert_time else {})

    @property
    def spec(self) -> SinkSpec:
        return self._as(TableSpec)

    def __str__(self) -> str:
        return self.table


def order_columns(sink: PostgresTable, record: dict[str, str]) -> dict[str, ColumnType]:
    """Types of the ``_order_…`` columns of an upsert sink, by name; raises ``ValueError`` if one cannot order rows."""
    kinds = {name: parse_type(kind) for name, kind in {**(sink.columns or {}), **record}.items()}
    for name in sink.order_by:
        if name in kinds and (kinds[name].by_text or kinds[name].element):
            raise ValueError(f"order_by: {name} is {kinds[name]}, which cannot order rows; use a number, time or text")
    return {order_column(name): kinds[name] for name in sink.order_by if name in kinds}
