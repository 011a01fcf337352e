"""Savepoints and restores: the adapter behind `epochline.ports.Savepoints`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from psycopg2 import sql
from sqlalchemy import Connection, Row

from epochline.declare.event_time import PartitionTime
from epochline.declare.names import savepoint_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateTable, not_counted
from epochline.errors import SavepointFileError, StateError
from epochline.ports import PipelineRow
from epochline.postgres.ledger.chain import PostgresChain
from epochline.postgres.ledger.epoch_files import delete_older, file_of, is_there, new_file
from epochline.postgres.ledger.savepoint_file import read_description, read_rows, write_file
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.ownership import settle_table
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.application import names
from epochline.postgres.targets.state_triggers import is_followed, state_content, state_now
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.savepoint import SavedHead, Savepoint


class _OvertakenError(Exception):
    """Another epoch was committed while the state was read."""


class PostgresSavepoints:
    """Savepoints in rows of the ledger, with one table for each copy of a state table."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def standing(self, pipeline: Pipeline, name: str, by: str, reason: str) -> Savepoint | None:
        last = execute(self._connection, "savepoint_position", pipeline=pipeline.name).one_or_none()
        if last is None:
            return None
        rows = execute(self._connection, "heads_with_times", pipeline=pipeline.name)
        return Savepoint(
            pipeline=pipeline.name, name=name, epoch_id=last.epoch_id,
            generation=last.generation, cluster_id=last.cluster_id, watermark=last.watermark,
            heads=tuple(map(_head, rows)), states={}, made_by=by, reason=reason,
        )  # fmt: skip

    def keep(self, savepoint: Savepoint, pipeline: Pipeline) -> None:
        self._write(savepoint, pipeline.stored())
        for state in pipeline.states:
            self._copy(savepoint, state)

    def _write(self, savepoint: Savepoint, declaration: str) -> None:
        execute(
            self._connection, "keep_savepoint",
            pipeline=savepoint.pipeline, savepoint=savepoint.name,
            epoch_id=savepoint.epoch_id, generation=savepoint.generation, cluster_id=savepoint.cluster_id,
            watermark=savepoint.watermark, declaration=declaration, made_by=savepoint.made_by,
            reason=savepoint.reason,
        )  # fmt: skip
        for head in savepoint.heads:
            execute(
                self._connection, "keep_savepoint_head",
                pipeline=savepoint.pipeline, savepoint=savepoint.name, topic=head.tp.topic, topic_id=head.tp.topic_id,
                partition=head.tp.partition, next_offset=head.next_offset, leader_epoch=head.leader_epoch,
                newest=head.time.newest, read_at=head.time.read_at,
            )  # fmt: skip

    def find(self, pipeline: str, name: str) -> Savepoint | None:
        return next((one for one in self.of(pipeline) if one.name == name), None)

    def of(self, pipeline: str) -> Sequence[Savepoint]:
        return [self._read(row) for row in execute(self._connection, "savepoints", pipeline=pipeline)]

    def delete(self, pipeline: str, name: str) -> None:
        for row in execute(self._connection, "savepoint_states", pipeline=pipeline, savepoint=name).all():
            execute_sql(self._connection, sql.SQL("DROP TABLE {}").format(_copy(row.table_name)))
        execute(self._connection, "delete_savepoint", pipeline=pipeline, savepoint=name)

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        saved = execute(
            self._connection, "savepoint_states", pipeline=savepoint.pipeline, savepoint=savepoint.name
        ).all()
        tables = {row.state: row for row in saved}
        own = savepoint.imported_at is None and savepoint.pipeline == pipeline.name
        for state in pipeline.states:
            row = tables[states[state.table]]
            kept = StateDigest(keys=row.keys, digest=int(row.digest))
            if state_content(self._connection, f"epochline.{row.table_name}") != kept:
                raise self._not_as_saved(savepoint, state)
            where = sql.Identifier(*split_table(state.table))
            execute_sql(self._connection, sql.SQL("DELETE FROM {}").format(where))
            columns = names(list(state.columns or {}))
            # The epoch ids of another pipeline mean nothing here.
            epoch = sql.SQL("_epoch") if own else sql.Literal(epoch_id)
            statement = sql.SQL("INSERT INTO {} ({columns}, _epoch) SELECT {columns}, {epoch} FROM {}")
            execute_sql(self._connection, statement.format(where, _copy(row.table_name), columns=columns, epoch=epoch))
            now = state_now(self._connection, state.table)
            if now is None:
                raise not_counted(pipeline.name, state.table, followed=is_followed(self._connection, state.table))
            # The digest has the epoch ids, so another pipeline's rows are compared one by one.
            same = sql.SQL(
                "SELECT count(*) FROM {} s JOIN {} c USING ({key}) WHERE ROW({there})::record *= ROW({due})::record"
            ).format(
                where, _copy(row.table_name), key=names(state.key), there=names(list(state.columns or {}), "s"),
                due=names(list(state.columns or {}), "c"),
            )  # fmt: skip
            [(equal,)] = execute_sql(self._connection, same)[1]
            if now.keys != kept.keys or equal != kept.keys or (own and now != kept):
                raise self._not_as_saved(savepoint, state)

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        return list(execute(self._connection, "epochs_to_undo", pipeline=pipeline, epoch_id=epoch_id).scalars())

    def declaration(self, savepoint: Savepoint) -> str:
        named = {"pipeline": savepoint.pipeline, "savepoint": savepoint.name}
        return json.dumps(execute(self._connection, "savepoint_declaration", **named).scalar_one())

    def rows_sealed(self, pipeline: str, epochs: Sequence[int]) -> Mapping[str, int]:
        found = execute(self._connection, "rows_sealed", pipeline=pipeline, epochs=list(epochs))
        return {row.sink: row.rows for row in found}

    def restore(
        self,
        savepoint: Savepoint,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        undone: Sequence[int],
        origins: Mapping[TopicPartition, int],
    ) -> int:
        epoch_id: int = execute(self._connection, "next_epoch_id", pipeline=pipeline.name).scalar_one()
        execute(
            self._connection, "keep_declaration",
            hash=pipeline.declaration_hash, pipeline=pipeline.name, body=pipeline.stored(),
        )  # fmt: skip
        execute(
            self._connection, "insert_restore",
            pipeline=pipeline.name, epoch_id=epoch_id, generation=row.generation, dag_id=run.dag_id, run_id=run.run_id,
            host=run.host, hash=pipeline.declaration_hash, note=str(savepoint), watermark=savepoint.watermark,
        )  # fmt: skip
        saved = {head.tp: head for head in savepoint.heads}
        chain, chosen_by = PostgresChain(self._connection), f"savepoint {savepoint.name}"
        for tp, origin in origins.items():
            head = saved.get(tp) or SavedHead(tp=tp, next_offset=origin, leader_epoch=None, time=PartitionTime())
            carried = Head(tp=tp, origin=origin, next_offset=head.next_offset, leader_epoch=head.leader_epoch)
            execute(
                self._connection, "write_restored_origin",
                pipeline=pipeline.name, generation=row.generation, topic=tp.topic, topic_id=tp.topic_id,
                partition=tp.partition, offset=origin, chosen_by=chosen_by, leader_epoch=head.leader_epoch,
                newest=head.time.newest, read_at=head.time.read_at,
            )  # fmt: skip
            chain.link(pipeline.name, row.generation, carried)
        if undone:
            epochs = {"pipeline": pipeline.name, "epochs": list(undone)}
            execute(self._connection, "mark_undone", **epochs, by=epoch_id)
            execute(self._connection, "free_requeued", **epochs)
            execute(self._connection, "delete_claims", **epochs)
            execute(self._connection, "delete_quarantined", **epochs)
        return epoch_id

    def export(self, savepoint: Savepoint, into: IO[bytes]) -> None:
        named = {"pipeline": savepoint.pipeline, "savepoint": savepoint.name}
        copies = {one.state: _copy(one.table_name) for one in execute(self._connection, "savepoint_states", **named)}
        write_file(self._connection, savepoint, self.declaration(savepoint), copies, into)

    def leave_file(self, pipeline: Pipeline, folder: Path, *, keep: int) -> Path | None:
        savepoint = self._newest(pipeline)
        if savepoint is None or is_there(savepoint, folder):
            return None
        epoch = {"pipeline": pipeline.name, "epoch_id": savepoint.epoch_id}
        outcome = execute(self._connection, "epoch_outcome", **epoch).one()
        states = {state.table: sql.Identifier(*split_table(state.table)) for state in pipeline.states}
        try:
            with new_file(folder, savepoint.epoch_id) as into:
                write_file(self._connection, savepoint, pipeline.stored(), states, into, more=dict(outcome._mapping))
                if self._newest(pipeline) != savepoint:
                    raise _OvertakenError
        except _OvertakenError:
            return None
        delete_older(folder, savepoint.epoch_id, keep)
        return file_of(folder, savepoint.epoch_id)

    def _newest(self, pipeline: Pipeline) -> Savepoint | None:
        """A savepoint of the newest committed epoch, as its file describes it."""
        newest = self.standing(pipeline, "", "epochline", "left by its epoch")
        if newest is None:
            return None
        epoch = {"pipeline": pipeline.name, "epoch_id": newest.epoch_id}
        committed_at = execute(self._connection, "epoch_committed_at", **epoch).scalar_one()
        return replace(newest, name=f"epoch-{newest.epoch_id}", made_at=committed_at)

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        savepoint, declaration, states = read_description(source)
        if self.find(savepoint.pipeline, savepoint.name) is not None:
            raise SavepointFileError(f"{savepoint} is here already; delete it first. Nothing was changed.")
        self._write(savepoint, declaration)
        for state in states:
            name = savepoint_table(savepoint.pipeline, savepoint.name, state["state"])
            read_rows(self._connection, source, state, _copy(name))
            settle_table(self._connection, "epochline", name)
            execute(
                self._connection, "import_savepoint_state",
                pipeline=savepoint.pipeline, savepoint=savepoint.name, state=state["state"], table_name=name,
                keys=state["keys"], digest=int(state["digest"]),
            )  # fmt: skip
        execute(
            self._connection, "mark_imported",
            pipeline=savepoint.pipeline, savepoint=savepoint.name, made_at=savepoint.made_at,
        )  # fmt: skip
        return savepoint

    def _copy(self, savepoint: Savepoint, state: StateTable) -> None:
        name = savepoint_table(savepoint.pipeline, savepoint.name, state.table)
        source = sql.Identifier(*split_table(state.table))
        execute_sql(self._connection, sql.SQL("CREATE TABLE {} AS TABLE {}").format(_copy(name), source))
        settle_table(self._connection, "epochline", name)
        schema, table = split_table(state.table)
        execute(
            self._connection, "keep_savepoint_state",
            pipeline=savepoint.pipeline, savepoint=savepoint.name, state=state.table, table_name=name,
            schema=schema, table=table,
        )  # fmt: skip

    def _not_as_saved(self, savepoint: Savepoint, state: StateTable) -> StateError:
        return StateError(
            f"{savepoint}: the copy of {state} is not what was saved, or the table's columns changed since."
            " Nothing was changed. The command shows the other savepoints.",
            f"savepoints {savepoint.pipeline}",
        )

    def _read(self, row: Row[tuple[object, ...]]) -> Savepoint:
        named = {"pipeline": row.pipeline, "savepoint": row.name}
        return Savepoint(
            pipeline=row.pipeline, name=row.name, epoch_id=row.epoch_id,
            generation=row.generation, cluster_id=row.cluster_id, watermark=row.watermark, made_by=row.made_by,
            reason=row.reason, made_at=row.made_at, imported_at=row.imported_at,
            heads=tuple(map(_head, execute(self._connection, "savepoint_heads", **named))),
            states={
                one.state: StateDigest(keys=one.keys, digest=int(one.digest))
                for one in execute(self._connection, "savepoint_states", **named)
            },
        )  # fmt: skip


def _head(row: Row[tuple[object, ...]]) -> SavedHead:
    return SavedHead(
        tp=TopicPartition(topic=row.topic, partition=row.partition, topic_id=row.topic_id),
        next_offset=row.next_offset,
        leader_epoch=row.leader_epoch,
        time=PartitionTime(newest=row.newest_event_time, read_at=row.read_at),
    )


def _copy(table: str) -> sql.Identifier:
    return sql.Identifier("epochline", table)
