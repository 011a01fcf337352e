"""Old history, and values that an operator erases: the adapter behind `epochline.ports.Erasures`."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg2
from psycopg2 import sql

from epochline.config.resolve import epoch_folder
from epochline.declare.columns import DELETED_AT
from epochline.declare.names import deleted_keys_table, split_table
from epochline.errors import ActionRefusedError, TargetError
from epochline.ports.erasures import Holdings, RecordPlace, StoredRecord
from epochline.postgres.ledger.savepoint_file import delete_all
from epochline.postgres.queries.statements import InTransaction, change, compose, joined, query, where
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.columns import TargetColumn, columns_of
from epochline.postgres.targets.images import drop_tables, image_tables
from epochline.postgres.targets.states import PostgresStates, state_now
from epochline.protocol.bounds import plain

_PAGE = 200

_SHORTENING = {"date", "name", '"char"', "real", "double precision"}
"""Types that turn a value into another one in silence: that of somebody else."""


_SPELLED = {"text", "character varying", "citext"}
"""Types of which texts that differ may be equal, and that show a text as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """A table that may hold rows of a key: what it is, of which sink or state, and the condition of the rows."""

    kind: str
    of: str
    name: str
    table: sql.Identifier
    columns: Mapping[str, TargetColumn]
    condition: sql.Composable | None
    spelled: sql.Composable
    """Whether a type that shortens values takes those of the key as they are."""

    @property
    def parts(self) -> dict[str, Any]:
        return {"table": self.table, "condition": self.condition}


class PostgresErasures(InTransaction):
    """Deletes by the clock of the database."""

    def retentions(self) -> Mapping[str, Mapping[str, float]]:
        return {row.pipeline: row.retention for row in self._run("retentions")}

    def clock(self) -> datetime:
        moment: datetime = self._run("now").scalar_one()
        return moment

    def expire(self, pipeline: str, kind: str, age: float, at_most: int) -> int:
        old = {"pipeline": pipeline, "age": age, "at_most": at_most}
        match kind:
            case "quarantined":
                reason = f"erased by the pipeline's retention of {timedelta(seconds=age)}"
                return self._run("expire_quarantined", **old, reason=reason).rowcount
            case "before_images":
                images = self._run("old_images", **old)
                for image in images:
                    drop_tables(self._connection, image_tables(image.table_name))
                    self._run("image_erased", pipeline=pipeline, sink=image.sink, epoch_id=image.epoch_id)
                return len(images)
            case "deleted_keys":
                sinks = self._run("sinks_of_pipeline", pipeline=pipeline).scalars()
                return sum(self._expire_deleted(deleted_keys_table(pipeline, sink), age, at_most) for sink in sinks)
            case "ledger":
                self._run("allow_erasing")
                return self._run("expire_ledger", **old).rowcount
            case _:  # of a newer version
                return 0

    def _expire_deleted(self, name: str, age: float, at_most: int) -> int:
        if find_target(self._connection, f"epochline.{name}") is None:
            return 0
        side = {"side": sql.Identifier("epochline", name), "at": DELETED_AT}
        # A restore may have put back rows that were kept before there was such a time.
        change(self._connection, "UPDATE {side} SET {at} = clock_timestamp() WHERE {at} IS NULL", **side)
        return change(
            self._connection,
            "DELETE FROM {side} WHERE ctid IN (SELECT ctid FROM {side}"
            " WHERE {at} < clock_timestamp() - make_interval(secs => {age}) LIMIT {most})",
            **side, age=age, most=at_most,
        )  # fmt: skip

    def records(self, pipeline: str) -> Iterator[Sequence[StoredRecord]]:
        after: RecordPlace = (0, "", -1, -1)
        while True:
            names = ("generation", "topic_id", "partition", "offset")
            rows = self._run(
                "records_with_bytes", pipeline=pipeline, at_most=_PAGE, **dict(zip(names, after, strict=True))
            )
            if not rows:
                return
            page = [
                StoredRecord(**{**row, **{part: row[part] and bytes(row[part]) for part in ("key", "value")}})
                for row in rows.mappings()
            ]
            yield page
            after = page[-1].place

    def holdings(self, pipeline: str, key: Mapping[str, str]) -> Holdings:
        copies: Counter[str] = Counter()
        targets: dict[str, int] = {}
        unsearched: list[str] = []
        imaged: set[str] = set()
        obstacle = None
        for copy in self._copies(pipeline, key):
            if copy.condition is None:
                unsearched.append(copy.name)
                continue
            rows = self._number(copy)
            if copy.kind == "target":
                targets[copy.of] = rows
            elif rows:
                copies[copy.name] += rows
            if copy.kind == "before-images" and rows:
                imaged.add(copy.of)
            if copy.kind == "state" and rows:
                obstacle = obstacle or self._state_obstacle(pipeline, copy.of)
        texts = sum(self._run("texts_of_key", **self._mentioned(pipeline, key)).one())
        needs = next((sink for sink in sorted(imaged) if targets.get(sink)), None)
        return Holdings(
            copies=copies, targets=targets, texts=texts, unsearched=tuple(dict.fromkeys(unsearched)), obstacle=obstacle,
            needs_target=needs,
        )  # fmt: skip

    def _state_obstacle(self, pipeline: str, table: str) -> str | None:
        now, left = state_now(self._connection, table), PostgresStates(self._connection).left(pipeline, table)
        if now is not None and now == left.left:
            return None
        return (
            f"state {table} is not what epoch {left.left_by} left; put it back, or accept it:"
            f" `epochline accept-state {pipeline} --reason …`."
        )

    def _number(self, copy: _Copy) -> int:
        try:
            counting = "SELECT count(*), {spelled} FROM {table} WHERE {condition}"
            [(rows, is_exact)] = query(self._connection, counting, **copy.parts, spelled=copy.spelled)
        except (psycopg2.DataError, psycopg2.errors.UndefinedFunction) as error:
            # Not chained: the driver's error shows the value.
            said = f"{copy.name}: its columns take no such value ({type(error).__name__})."
        else:
            if is_exact:
                return int(rows)
            said = f"{copy.name}: its columns shorten the value; write it as PostgreSQL shows it."
        raise ActionRefusedError(f"{said} Nothing was changed.")

    def _copies(self, pipeline: str, key: Mapping[str, str]) -> Iterator[_Copy]:
        """Every table of the pipeline that keeps rows by key: copies first, then state, then targets."""
        images = {(image.sink, image.table_name) for image in self._run("images_of_pipeline", pipeline=pipeline)}
        for sink, name in sorted(images):
            for image in image_tables(name):
                yield from self._copy("before-images", sink, f"before-images of {sink}", image, key)
        for sink in self._run("sinks_of_pipeline", pipeline=pipeline).scalars():
            side = sql.Identifier("epochline", deleted_keys_table(pipeline, sink))
            yield from self._copy("deleted", sink, f"deleted keys of {sink}", side, key)
        for row in self._run("savepoint_copies", pipeline=pipeline):
            name = f"savepoint {row.name}, state {row.state}"
            yield from self._copy("savepoint", row.table_name, name, sql.Identifier("epochline", row.table_name), key)
        for kind, tables in (("state", "states_of_pipeline"), ("target", "targets_of_pipeline")):
            for table in self._run(tables, pipeline=pipeline).scalars():
                yield from self._copy(kind, table, f"{kind} {table}", sql.Identifier(*split_table(table)), key)

    def _copy(self, kind: str, of: str, name: str, table: sql.Identifier, key: Mapping[str, str]) -> Iterator[_Copy]:
        place = ".".join(table.strings)
        if kind in ("state", "target"):
            find_target(self._connection, place)  # raises where row-level security may hide rows
        columns = columns_of(self._connection, place)
        if not columns:
            return
        condition: sql.Composable | None = None
        spelled: sql.Composable = sql.SQL("true")
        if key.keys() <= columns.keys():
            parts = {
                column: {"c": column, "v": sql.Literal(value), "kind": sql.SQL(_unlimited(columns[column]))}
                for column, value in key.items()
            }
            equal = [compose("{c} = CAST({v} AS {kind})", **part) for part in parts.values()]
            # Texts of another key may be equal by a collation, or as citext.
            spellings = [
                part for name, part in parts.items() if columns[name].plain in _SPELLED and not columns[name].arrays
            ]
            equal += [compose('(CAST({c} AS text) COLLATE "C") = {v}', **part) for part in spellings]
            condition = joined(equal, " AND ")
            same = "CAST(CAST({v} AS {kind}) AS text) = {v}"
            shortened = [compose(same, **part) for name, part in parts.items() if columns[name].plain in _SHORTENING]
            spelled = joined([spelled, *shortened], " AND ")
        yield _Copy(kind=kind, of=of, name=name, table=table, columns=columns, condition=condition, spelled=spelled)

    def _mentioned(self, pipeline: str, key: Mapping[str, str]) -> dict[str, Any]:
        """The values as regular expressions of whole words, for texts that quote them."""
        spellings = (sorted(re.sub(r"(\W)", r"\\\1", text) for text in _spellings(value)) for value in key.values())
        return {"pipeline": pipeline, "patterns": [rf"(^|\W)({'|'.join(texts)})(\W|$)" for texts in spellings]}

    def erase(
        self,
        pipeline: str,
        key: Mapping[str, str],
        records: Collection[RecordPlace],
        *,
        targets: bool,
        by: str,
        why: str,
    ) -> None:
        said = self._run("erasure_said", by=by, why=why).scalar_one()
        for copy in self._copies(pipeline, key):
            if copy.condition is None or copy.kind == "target" or not self._number(copy):
                continue
            left = PostgresStates(self._connection).left(pipeline, copy.of) if copy.kind == "state" else None
            change(self._connection, "DELETE FROM {table} WHERE {condition}", **copy.parts)
            if copy.kind == "savepoint":
                self._run("count_savepoint_state", pipeline=pipeline, table_name=copy.of)
            if left is not None:
                self._run("leave_state", pipeline=pipeline, state=copy.of, epoch_id=left.left_by, **where(copy.of))
        for copy in self._copies(pipeline, key) if targets else ():
            if copy.kind == "target" and copy.condition is not None:
                self._erase_rows(pipeline, copy, said)
        generations, topics, partitions, offsets = map(list, zip(*records, strict=True)) if records else ([],) * 4
        places = {"generations": generations, "topic_ids": topics, "partitions": partitions, "offsets": offsets}
        self._run("erase_records", pipeline=pipeline, said=said, by=by, **places)
        self._run("allow_erasing")
        for statement in (
            "erase_refused",
            "erase_attempt_errors",
            "erase_epoch_errors",
            "erase_outside",
            "erase_plan_failure",
            "erase_pause",
        ):
            self._run(statement, **self._mentioned(pipeline, key), said=said)

    def _erase_rows(self, pipeline: str, copy: _Copy, said: str) -> None:
        due = self._number(copy)
        places: list[sql.Composable] = [
            sql.Identifier(name) if name in copy.columns else sql.SQL(f"NULL::{kind}")
            for name, kind in (
                ("_epoch", "bigint"),
                ("_topic", "text"),
                ("_partition", "integer"),
                ("_offset", "bigint"),
            )
        ]
        change(
            self._connection,
            "WITH gone AS (DELETE FROM {table} WHERE {condition} RETURNING *)"
            " INSERT INTO epochline.erased_row (said, pipeline, sink, at_epoch, epoch_id, topic, partition, {o}, rows)"
            " SELECT {said}, {pipeline}, {sink}, (SELECT coalesce(max(epoch_id), 0) FROM epochline.epoch"
            " WHERE pipeline = {pipeline} AND state = 'COMMITTED'), {places}, count(*) FROM gone"
            " GROUP BY {places} HAVING count(*) > 0",
            **copy.parts, o="offset", said=sql.Literal(said), pipeline=sql.Literal(pipeline), sink=sql.Literal(copy.of),
            places=joined(places),
        )  # fmt: skip
        left = self._number(copy)
        if due and left:
            raise TargetError(
                f"{copy.name}: of {due} rows to erase {left} are still there: a trigger, a rule or row-level security"
                " keeps them. Nothing was changed. Remove it.",
                f"plan {pipeline}",
            )

    def erased(self, pipeline: str, epochs: Sequence[int]) -> Sequence[str]:
        return self._run("erased_of_epochs", pipeline=pipeline, epochs=list(epochs)).scalars()

    def has_state(self, pipeline: str) -> bool:
        return bool(self._run("states_of_pipeline", pipeline=pipeline))

    def folders(self, pipeline: str) -> Sequence[str]:
        return self._run("folders_of_pipeline", pipeline=pipeline).scalars()

    def delete_files(self, pipeline: str) -> Mapping[str, int]:
        folders = self.folders(pipeline) if self.has_state(pipeline) else ()
        return {str(path): delete_all(path) for path in (epoch_folder(folder, pipeline) for folder in folders)}


def _unlimited(column: TargetColumn) -> str:
    """The column's type without a limit to which a cast would shorten a value: that may be somebody else's."""
    return f"{column.plain}[]" if column.arrays else column.plain


def _spellings(value: str) -> set[str]:
    """How texts of the ledger write a value: as it is, as in JSON, as Python quotes it, or with commas in a number."""
    texts = {value, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    if re.fullmatch(r"-?\d{1,100}(\.\d{1,100})?", value):
        texts.add(plain(Decimal(value)))
    return texts
