"""From a row of a target to the epoch and the record that made it, as far as ledger and target tell. Changes nothing.

A row with lineage names its record. A row that many records made names its last epoch at most: then what is told are
the ranges in which its records are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg2
from psycopg2 import errors, sql

from epochline.declare.columns import END, LINEAGE, START
from epochline.declare.names import deleted_keys_table, split_table
from epochline.errors import ConfigurationError, EpochNotFoundError, LedgerError
from epochline.postgres.queries.statements import Connection, InTransaction, compose, joined, names, query, run
from epochline.postgres.targets.catalog import Target, find_target
from epochline.postgres.targets.images import EXISTED
from epochline.protocol.why import Record, RowOrigin, Scope, Why

_PLACE = ("_topic", "_partition", "_offset")

Given = Mapping[str, str]
"""Columns of a table with the values to look for, as PostgreSQL writes them."""


def explain(
    connection: Connection, table: str, key: Sequence[str], most: int, pipeline: str | None = None
) -> Why:  # fmt: skip
    """Find rows of a table and what made them, in the caller's transaction.

    Args:
        connection: of a login that may read the ledger's views and the table.
        table: ``table`` in ``public``, or ``schema.table``.
        key: ``column=value`` for each column, or the bare value of a key of one column.
        most: the number of rows to explain.
        pipeline: the only pipeline whose tables may be asked; None for any.

    Raises:
        ConfigurationError: the table does not exist, the key does not fit it, or a value does not fit its type.
        EpochNotFoundError: no epoch wrote the table, or it has no such row and nothing says what became of it.
        LedgerError: the login may not read the table.
    """
    _refuse_surrogates(table)
    schema, name = split_table(table)
    spelled = [f"{schema}.{name}", *([name] if schema == "public" else [])]
    writers = run(connection, "writers_of_table", names=spelled)
    if not writers or pipeline not in (None, writers[0].pipeline):
        whom = "this ledger" if pipeline is None else pipeline
        raise EpochNotFoundError(f"no committed epoch of {whom} wrote {table}.")
    target = find_target(connection, table)
    if target is None:
        of_epoch = {"pipeline": writers[0].pipeline, "epoch_id": writers[0].epoch_id, "declared": writers[0].declared}
        if writers[0].is_state or run(connection, "declared_table", **of_epoch).one_or_none() is not None:
            raise ConfigurationError(f"the table {schema}.{name} is gone.")
        raise ConfigurationError(f"{table} is no table. Only rows of PostgreSQL can be looked up by their key.")
    return _Answer(connection, target, writers[0], _given(target, table, key)).why(most)


def _refuse_surrogates(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigurationError(f"{text!r} is not UTF-8, so no row has it.")


def _given(target: Target, table: str, key: Sequence[str]) -> Given:
    """The columns and values that a key names."""
    single = [next(iter(columns)) for columns in target.unique_keys if len(columns) == 1]
    given: dict[str, str] = {}
    for text in key:
        _refuse_surrogates(text)
        column = max((name for name in target.columns if text.startswith(f"{name}=")), key=len, default=None)
        if column in given:
            raise ConfigurationError(f"the key names the column {column} twice: give one value.")
        if column is not None:
            given[column] = text[len(column) + 1 :]
        elif len(key) == 1 and len(single) == 1:
            given[single[0]] = text
        else:
            has = ", ".join(sorted(min(target.unique_keys, key=sorted))) if target.unique_keys else "no unique key"
            raise ConfigurationError(
                f"{text!r} does not say which column of {table} it is a value of: write column=value. Its key: {has};"
                f" its columns: {', '.join(target.columns)}."
            )
    return given


class _Answer(InTransaction):
    def __init__(self, connection: Connection, target: Target, writer: Any, given: Given) -> None:
        super().__init__(connection)
        self._target, self._given = target, given
        self._pipeline: str = writer.pipeline
        self._declared: str = writer.declared
        self._newest: int = writer.epoch_id
        of_epoch = {"pipeline": writer.pipeline, "epoch_id": writer.epoch_id}
        said = self._run("declared_table", **of_epoch, declared=writer.declared).one_or_none()
        self._mode = "state" if said is None else said.mode
        self._transformed = said is None or said.transformed
        self._keeps_state = said is None or said.keeps_state
        self._keeps_unavailable = said is not None and said.keep_unavailable
        self._kafka = {row.input: row.connection for row in self._run("declared_kafka", **of_epoch)}
        self._rights = self._run("reader_rights").one()

    def why(self, most: int) -> Why:
        found = self._rows(most + 1)
        deletion = None if found else self._deletion()
        if not found and deletion is None:
            key = ", ".join(f"{column}={value}" for column, value in self._given.items())
            raise EpochNotFoundError(
                f"{self._declared} has no row with {key}, and nothing says that an epoch deleted one."
            )
        return Why(
            pipeline=self._pipeline, table=self._declared, mode=self._mode,
            rows=[self._origin(*row) for row in found[:most]], more=len(found) > most, deletion=deletion,
            kafka=self._kafka, sees_bytes=self._rights.sees_bytes,
        )  # fmt: skip

    def _rows(self, most: int) -> list[tuple[RowOrigin, str, dict[str, Any]]]:
        """The rows of the key, the last written first, each with the transaction that wrote it and its lineage."""
        columns = self._target.columns
        lineage = [name for name in LINEAGE if name in columns]
        unique = min(self._target.unique_keys, key=sorted, default=frozenset())
        keys = list(dict.fromkeys([*self._given, *(name for name in columns if name in unique)]))
        window = [START, END] if {START, END} <= columns.keys() else []
        newest = joined(compose("t.{c} DESC NULLS LAST", c=name) for name in lineage[::-1])
        statement = compose(
            "SELECT {selected} FROM {table} t WHERE {fits}{order} LIMIT {most}",
            selected=joined(
                [
                    *(compose("t.{c}::text", c=name) for name in (*keys, *window, "xmin")),
                    *(compose("t.{c}", c=name) for name in lineage),
                ]
            ),
            table=self._target.identifier, fits=self._fits("t"), most=most,
            order=compose(" ORDER BY {newest}", newest=newest) if lineage else sql.SQL(""),
        )  # fmt: skip
        rows = []
        for values in self._query(statement):
            at = len(keys) + len(window)
            origin = RowOrigin(key=dict(zip(keys, values, strict=False)))
            if window:
                origin.window = (values[at - 2], values[at - 1])
            rows.append((origin, values[at], dict(zip(lineage, values[at + 1 :], strict=True))))
        return rows

    def _query(self, statement: sql.Composable) -> list[tuple[Any, ...]]:
        table = ".".join(self._target.place)
        try:
            return query(self._connection, statement)
        except errors.InsufficientPrivilege:
            login = self._rights.login
            raise LedgerError(
                f"The login may not read {table}: run `GRANT USAGE ON SCHEMA {self._target.schema} TO {login}; GRANT"
                f" SELECT ON {table} TO {login}` in PostgreSQL."
            ) from None
        except psycopg2.DataError as error:
            kinds = ", ".join(f"{name} is {self._target.columns[name].kind}" for name in self._given)
            raise ConfigurationError(
                f"a value does not fit its column's type ({error.diag.message_primary}): {kinds}."
            ) from None
        except errors.UndefinedFunction as error:
            raise ConfigurationError(
                f"PostgreSQL cannot compare values of a given column ({error.diag.message_primary}): name another one."
            ) from None

    def _fits(self, row: str) -> sql.Composable:
        return joined(
            (
                # Without a cast: one to numeric(6,2) or varchar(3) would find the row of another value.
                compose("{column} = {value}", column=sql.Identifier(row, name), value=sql.Literal(value))
                for name, value in self._given.items()
            ),
            " AND ",
        )  # fmt: skip

    def _origin(self, origin: RowOrigin, xmin: str, lineage: Mapping[str, Any]) -> RowOrigin:
        epoch_id = lineage.get("_epoch")
        if "_epoch" in lineage and epoch_id is None:
            origin.notes.append("The row names no epoch: another program wrote it, or it was there before.")
            return origin
        if epoch_id is not None:
            self._take_epoch(origin, epoch_id, xmin)
        if lineage.get("_offset") is not None:
            place = Record(
                topic=lineage["_topic"], partition=lineage["_partition"], offset=lineage["_offset"],
                row=lineage.get("_row"),
            )  # fmt: skip
            self._take_record(origin, place)
        elif epoch_id is None or origin.epoch is not None:
            origin.scope = self._scope(epoch_id)
        origin.replaced = self._replaced()
        return origin

    def _take_epoch(self, origin: RowOrigin, epoch_id: int, xmin: str) -> None:
        epoch = self._run("epoch_that_wrote", pipeline=self._pipeline, epoch_id=epoch_id).one_or_none()
        if epoch is None or epoch.state != "COMMITTED" or epoch.undone_by is not None:
            origin.notes.append(
                f"The row names epoch {epoch_id}, and the ledger has no committed epoch {epoch_id} of {self._pipeline}"
                " that stands: no epoch wrote the row as it is."
            )
            return
        origin.epoch = epoch._asdict()
        if not (self._rights.is_owner and self._rights.commits_have_times):
            return
        last = self._run("last_write_of_row", pipeline=self._pipeline, epoch_id=epoch_id, xmin=xmin).one()
        if last.by_epoch is False:
            origin.notes.append(
                f"Another hand wrote the row last: a transaction of {last.written_at:%Y-%m-%d %H:%M:%S %Z}, which was"
                " no epoch's commit."
            )

    def _take_record(self, origin: RowOrigin, named: Record) -> None:
        epoch, last = origin.epoch, self._newest if origin.epoch is None else origin.epoch["epoch_id"]
        place = {"topic": named.topic, "partition": named.partition, "offset": named.offset}
        read_by = self._run("epoch_that_read", pipeline=self._pipeline, epoch_id=last, **place).one_or_none()
        seen = self._run("log_when_seen", pipeline=self._pipeline, **place).one_or_none()
        if read_by is not None:
            named = replace(named, read_at=read_by.committed_at)
            for read in self._run("audited_ranges", pipeline=self._pipeline, epoch_id=read_by.epoch_id):
                if (read.topic, read.partition) == (named.topic, named.partition):
                    cut = read.replaced_from is not None and read.replaced_from <= named.offset
                    gone = "the log was cut off since, and may hold another record there" if cut else None
                    named = replace(named, topic_id=read.topic_id, gone=gone)
        if seen is not None and seen.topic_id == named.topic_id:
            named = replace(named, seen_at=seen.observed_at, seen_start=seen.log_start)
        origin.record = named
        if epoch is not None and epoch["kind"] == "requeue" and read_by is not None:
            origin.notes.append(f"Epoch {read_by.epoch_id} set the record aside, and epoch {last} read it again.")
        elif epoch is not None and (read_by is None or read_by.epoch_id != last):
            origin.notes.append(f"Epoch {last} did not read {named}: another hand wrote the row's lineage.")
        if "_epoch" not in self._target.columns:
            origin.notes.append("The table has no column _epoch: an earlier log may have had the record's place.")
        if self._transformed:
            origin.notes.append("A transform made the row and names this record; others may be in it.")
        if self._keeps_unavailable:
            origin.notes.append("Values that the record does not give are those of earlier records of the key.")

    def _scope(self, epoch_id: int | None) -> Scope:
        if epoch_id is not None and not self._keeps_state:
            first, last, said = epoch_id, epoch_id, "a transform made the row of records of its epoch"
        elif epoch_id is not None:
            first, last, said = 1, epoch_id, "state goes from epoch to epoch, and this one wrote the row last"
        elif self._mode == "replace":
            first, last, said = self._newest, self._newest, "the newest epoch replaced all rows"
        elif self._mode == "add":
            first, last, said = 1, self._newest, "each epoch adds its records of the key"
        else:
            first, last, said = 1, self._newest, "the table has no lineage, so the row tells no epoch"
        of_epochs = {"pipeline": self._pipeline, "first": first, "last": last}
        ranges = [row._asdict() for row in self._run("ranges_of_epochs", **of_epochs)]
        return Scope(first=first, last=last, said=said, ranges=ranges)

    def _replaced(self) -> list[Mapping[str, Any]]:
        """What the before-images keep of the key: by epoch, whether it had a row then, and that row's lineage."""
        if self._mode not in ("upsert", "add") or not self._sees_tables_beside:
            return []
        found: list[Mapping[str, Any]] = []
        for image in self._run("images", pipeline=self._pipeline, sink=self._declared):
            kept = find_target(self._connection, f"epochline.{image.table_name}")
            if kept is None:
                continue
            shown = [name for name in (*_PLACE, "_epoch") if name in kept.columns]
            columns = names([EXISTED, *shown])
            for existed, *values in self._beside(kept, columns):
                lineage = {name.lstrip("_"): value for name, value in zip(shown, values, strict=True)}
                found.append({"replaced_by": image.epoch_id, "existed": existed, **lineage})
        return found

    def _deletion(self) -> Record | None:
        """The record that deleted the key of an upsert target, by its side table."""
        if self._mode != "upsert" or not self._sees_tables_beside:
            return None
        kept = find_target(self._connection, f"epochline.{deleted_keys_table(self._pipeline, self._declared)}")
        if kept is None or not {*_PLACE} <= kept.columns.keys():
            return None
        for topic, partition, offset in self._beside(kept, names(_PLACE)):
            self._take_record(origin := RowOrigin(key={}), Record(topic=topic, partition=partition, offset=offset))
            return origin.record
        return None

    @property
    def _sees_tables_beside(self) -> bool:
        """Whether the tables beside a target can be asked: by its key, and by the ledger's login."""
        return bool(self._rights.is_owner) and frozenset(self._given) in self._target.unique_keys

    def _beside(self, table: Target, columns: sql.Composable) -> list[tuple[Any, ...]]:
        statement = "SELECT {columns} FROM {table} t WHERE {fits}"
        return self._query(compose(statement, columns=columns, table=table.identifier, fits=self._fits("t")))
