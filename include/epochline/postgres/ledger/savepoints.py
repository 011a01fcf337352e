"""Savepoints and restores: the adapter behind `epochline.ports.Savepoints`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from psycopg2 import sql

from epochline.declare.event_time import PartitionTime
from epochline.declare.names import savepoint_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateTable, not_counted
from epochline.errors import SavepointFileError, StateError
from epochline.ports import PipelineRow
from epochline.postgres.ledger.chain import PostgresChain
from epochline.postgres.ledger.rows import head_columns, named, saved_head
from epochline.postgres.ledger.savepoint_file import (
    delete_older,
    file_of,
    is_there,
    new_file,
    read_description,
    read_rows,
    refuse_other,
    stored,
    write_file,
)
from epochline.postgres.queries.statements import InTransaction, Row, change, names, query, settle_table, where
from epochline.postgres.targets.states import PostgresStates, is_followed, state_content, state_now
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.savepoint import SavedHead, Savepoint


class PostgresSavepoints(InTransaction):
    """Savepoints in rows of the ledger, with one table for each copy of a state table."""

    def standing(self, pipeline: Pipeline, name: str, by: str, reason: str) -> Savepoint | None:
        last = self._run("savepoint_position", pipeline=pipeline.name).one_or_none()
        if last is None:
            return None
        heads = tuple(map(saved_head, self._run("heads_with_times", pipeline=pipeline.name).mappings()))
        return Savepoint(
            pipeline=pipeline.name, name=name, made_by=by, reason=reason, **last._asdict(), heads=heads, states={}
        )

    def keep(self, savepoint: Savepoint, pipeline: Pipeline) -> None:
        self._write(savepoint, pipeline.stored())
        for state in pipeline.states:
            self._copy(savepoint, state)

    def _write(self, savepoint: Savepoint, declaration: str) -> None:
        self._run("keep_savepoint", **stored(savepoint), declaration=declaration)
        for head in savepoint.heads:
            self._run("keep_savepoint_head", **named(savepoint), **head_columns(head))

    def find(self, pipeline: str, name: str) -> Savepoint | None:
        return next((savepoint for savepoint in self.of(pipeline) if savepoint.name == name), None)

    def of(self, pipeline: str) -> Sequence[Savepoint]:
        return [self._read(row) for row in self._run("savepoints", pipeline=pipeline)]

    def delete(self, pipeline: str, name: str) -> None:
        for row in self._run("savepoint_states", pipeline=pipeline, savepoint=name):
            change(self._connection, "DROP TABLE {copy}", copy=_copy(row.table_name))
        self._run("delete_savepoint", pipeline=pipeline, savepoint=name)

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        tables = {row.state: row for row in self._run("savepoint_states", **named(savepoint))}
        is_own = savepoint.imported_at is None and savepoint.pipeline == pipeline.name
        for state in pipeline.states:
            row = tables[states[state.table]]
            kept = StateDigest(keys=row.keys, digest=int(row.digest))
            if state_content(self._connection, f"epochline.{row.table_name}") != kept:
                raise self._not_as_saved(savepoint, state)
            columns = state.columns or {}
            # The epoch ids of another pipeline mean nothing here.
            epoch = sql.SQL("_epoch") if is_own else sql.Literal(epoch_id)
            parts = {
                "state": sql.Identifier(*split_table(state.table)), "copy": _copy(row.table_name), "epoch": epoch,
                "key": names(state.key), "columns": names(columns), "s": names(columns, "s"), "c": names(columns, "c"),
            }  # fmt: skip
            change(self._connection, "DELETE FROM {state}", **parts)
            back = "INSERT INTO {state} ({columns}, _epoch) SELECT {columns}, {epoch} FROM {copy}"
            change(self._connection, back, **parts)
            # The triggers counted out the rows that were deleted, which may have rotted.
            now = state_now(self._connection, state.table, read=True)
            if now is None:
                raise not_counted(pipeline.name, state.table, followed=is_followed(self._connection, state.table))
            # The digest has the epoch ids, so another pipeline's rows are compared one by one.
            equal_rows = (
                "SELECT count(*) FROM {state} s JOIN {copy} c USING ({key}) WHERE ROW({s})::record *= ROW({c})::record"
            )
            [(equal,)] = query(self._connection, equal_rows, **parts)
            if now.keys != kept.keys or equal != kept.keys or (is_own and now != kept):
                raise self._not_as_saved(savepoint, state)

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        return list(self._run("epochs_to_undo", pipeline=pipeline, epoch_id=epoch_id).scalars())

    def declaration(self, savepoint: Savepoint) -> str:
        return json.dumps(self._run("savepoint_declaration", **named(savepoint)).scalar_one())

    def rows_sealed(self, pipeline: str, epochs: Sequence[int]) -> Mapping[str, int]:
        sealed = self._run("rows_sealed", pipeline=pipeline, epochs=list(epochs))
        return {row.sink: row.rows for row in sealed}

    def restore(
        self,
        savepoint: Savepoint,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        undone: Sequence[int],
        origins: Mapping[TopicPartition, int],
    ) -> int:
        epoch_id: int = self._run("next_epoch_id", pipeline=pipeline.name).scalar_one()
        declared = {"pipeline": pipeline.name, "hash": pipeline.declaration_hash}
        self._run("keep_declaration", **declared, body=pipeline.stored())
        self._run(
            "insert_restore", **declared, **asdict(run),
            epoch_id=epoch_id, generation=row.generation, note=str(savepoint), watermark=savepoint.watermark,
        )  # fmt: skip
        saved = {head.tp: head for head in savepoint.heads}
        chain, chosen_by = PostgresChain(self._connection), f"savepoint {savepoint.name}"
        for tp, origin in origins.items():
            head = saved.get(tp) or SavedHead(tp=tp, next_offset=origin, leader_epoch=None, time=PartitionTime())
            carried = Head(tp=tp, origin=origin, next_offset=head.next_offset, leader_epoch=head.leader_epoch)
            chain.carry_over(pipeline.name, row.generation, carried, chosen_by, time=head.time)
        if undone:
            epochs = {"pipeline": pipeline.name, "epochs": list(undone)}
            self._run("mark_undone", **epochs, by=epoch_id)
            for statement in ("free_requeued", "delete_claims", "delete_quarantined"):
                self._run(statement, **epochs)
        return epoch_id

    def export(self, savepoint: Savepoint, into: IO[bytes]) -> None:
        copies = {row.state: _copy(row.table_name) for row in self._run("savepoint_states", **named(savepoint))}
        held = write_file(self._connection, savepoint, self.declaration(savepoint), copies, into)
        refuse_other(str(savepoint), savepoint.states, held)

    def leave_file(self, pipeline: Pipeline, folder: Path, *, keep: int) -> Path | None:
        savepoint, erasures = self._newest(pipeline), self._erasures(pipeline.name)
        if savepoint is None or is_there(savepoint, folder):
            return None
        epoch = {"pipeline": pipeline.name, "epoch_id": savepoint.epoch_id}
        outcome = self._run("epoch_outcome", **epoch).one()._asdict()
        states = {state.table: sql.Identifier(*split_table(state.table)) for state in pipeline.states}
        with new_file(folder, savepoint.epoch_id) as file:
            held = write_file(self._connection, savepoint, pipeline.stored(), states, file.draft, more=outcome)
            # An erasure deletes all files: it ended before this lock, or begins after the file has its name.
            self._run("lock_pipeline", pipeline=pipeline.name)
            file.is_whole = self._newest(pipeline) == savepoint and self._erasures(pipeline.name) == erasures
            if file.is_whole:
                states_left = PostgresStates(self._connection)
                left = {state: states_left.left(pipeline.name, state).left for state in states}
                refuse_other(f"epoch {savepoint.epoch_id} of {pipeline.name}", left, held)
        if not file.is_whole:
            return None
        delete_older(folder, savepoint.epoch_id, keep)
        return file_of(folder, savepoint.epoch_id)

    def _erasures(self, pipeline: str) -> Sequence[Row]:
        return self._run("erasures", pipeline=pipeline)

    def _newest(self, pipeline: Pipeline) -> Savepoint | None:
        """A savepoint of the newest committed epoch, as its file describes it."""
        newest = self.standing(pipeline, "", "epochline", "left by its epoch")
        if newest is None:
            return None
        epoch = {"pipeline": pipeline.name, "epoch_id": newest.epoch_id}
        committed_at = self._run("epoch", **epoch).one().committed_at
        return replace(newest, name=f"epoch-{newest.epoch_id}", made_at=committed_at)

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        savepoint, declaration, states = read_description(source)
        if self.find(savepoint.pipeline, savepoint.name) is not None:
            raise SavepointFileError(f"{savepoint} is here already; delete it first. Nothing was changed.")
        later = [row for row in self._erasures(savepoint.pipeline) if row.acted_at > savepoint.made_at]
        if states and later:
            raise SavepointFileError(
                f"{savepoint} was made before values were erased on {later[-1].acted_at:%Y-%m-%d %H:%M %Z} by"
                f" {later[-1].actor} ({later[-1].reason}), and may hold them. Nothing was changed. Export a savepoint"
                " that was made later, and delete the file."
            )
        self._write(savepoint, declaration)
        for state in states:
            name = savepoint_table(savepoint.pipeline, savepoint.name, state["state"])
            read_rows(self._connection, source, state, _copy(name))
            settle_table(self._connection, "epochline", name)
            content = {"keys": state["keys"], "digest": int(state["digest"])}
            self._run("import_savepoint_state", **named(savepoint), state=state["state"], table_name=name, **content)
        self._run("mark_imported", **named(savepoint), made_at=savepoint.made_at)
        return savepoint

    def _copy(self, savepoint: Savepoint, state: StateTable) -> None:
        name = savepoint_table(savepoint.pipeline, savepoint.name, state.table)
        source = sql.Identifier(*split_table(state.table))
        change(self._connection, "CREATE TABLE {copy} AS TABLE {source}", copy=_copy(name), source=source)
        settle_table(self._connection, "epochline", name)
        kept = {"state": state.table, "table_name": name}
        self._run("keep_savepoint_state", **named(savepoint), **kept, **where(state.table))

    def _not_as_saved(self, savepoint: Savepoint, state: StateTable) -> StateError:
        return StateError(
            f"{savepoint}: the copy of {state} is not what was saved, or the table's columns changed since."
            " Nothing was changed. The command shows the other savepoints.",
            f"savepoints {savepoint.pipeline}",
        )

    def _read(self, row: Row) -> Savepoint:
        of_savepoint = {"pipeline": row.pipeline, "savepoint": row.name}
        states = self._run("savepoint_states", **of_savepoint)
        return Savepoint(
            **row._asdict(),
            heads=tuple(map(saved_head, self._run("savepoint_heads", **of_savepoint).mappings())),
            states={state.state: StateDigest(keys=state.keys, digest=int(state.digest)) for state in states},
        )


def _copy(table: str) -> sql.Identifier:
    return sql.Identifier("epochline", table)
