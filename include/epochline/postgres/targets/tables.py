"""PostgreSQL tables as targets: the adapter behind `epochline.ports.Targets`."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from psycopg2 import sql

from epochline.declare.columns import DELETED_AT, END, QUARANTINE_COLUMNS
from epochline.declare.names import OWNER, deleted_keys_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.ports import Applied, Fit, Held, Prepared, TableDifference
from epochline.postgres.queries.statements import (
    Connection,
    InTransaction,
    change,
    compose,
    defined_columns,
    identify_rows,
    names,
    query,
)
from epochline.postgres.targets import accounting, claims, images
from epochline.postgres.targets.accounting import Check
from epochline.postgres.targets.application import Application, kept_order, order_of, remembers_deleted
from epochline.postgres.targets.catalog import find_target, refused_by_publication
from epochline.postgres.targets.claims import missing_rows, refuse_lost, remember
from epochline.postgres.targets.columns import columns_of
from epochline.postgres.targets.fit import check_existing, compare, filled_columns, table_definition
from epochline.postgres.targets.foreign_keys import refuse_unorderable
from epochline.postgres.targets.held import held
from epochline.postgres.targets.measures import measure
from epochline.postgres.targets.prepare import prepare
from epochline.postgres.targets.states import follow, mend
from epochline.postgres.targets.together import apply_together
from epochline.postgres.targets.trial import try_out
from epochline.postgres.targets.undo import undo
from epochline.protocol.bounds import Measured
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_columns


class PostgresTargets(InTransaction):
    """Target and staging tables of one database, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._checks: list[Check] = []
        """Checks of the tables that this transaction changed, for its end."""

    def inspect(self, pipeline: Pipeline) -> Mapping[str, Mapping[str, str]]:
        for sink in pipeline.tables:
            refuse_lost(self._connection, pipeline, sink)
        targets = {sink.table: find_target(self._connection, sink.table) for sink in pipeline.tables}
        filled = {
            sink.table: filled_columns(self._connection, pipeline, sink, targets[sink.table])
            for sink in pipeline.tables
        }
        refuse_unorderable(self._connection, pipeline, [target for target in targets.values() if target is not None])
        return filled

    def compare(self, pipeline: Pipeline) -> Fit:
        return compare(self._connection, pipeline)

    def refuse_foreign(self, pipeline: Pipeline) -> None:
        claims.refuse_foreign(self._connection, pipeline)

    def claim(self, pipeline: Pipeline) -> None:
        claims.claim(self._connection, pipeline)

    def lost(self, pipeline: Pipeline) -> Mapping[str, str]:
        missing = {sink.table: missing_rows(self._connection, pipeline, sink) for sink in pipeline.tables}
        return {table: why for table, why in missing.items() if why is not None}

    def accept(self, pipeline: Pipeline, epoch_id: int) -> None:
        for sink in pipeline.tables:
            if missing_rows(self._connection, pipeline, sink) is not None:
                remember(self._connection, pipeline, sink, epoch_id)

    def claimed(self, pipeline: str) -> Sequence[str]:
        return [
            f"{row.schema_name}.{row.table_name}" if row.schema_name else row.table_name
            for row in self._run("claimed_targets", pipeline=pipeline)
        ]

    def keeps_order(self, pipeline: Pipeline) -> Mapping[str, bool]:
        row = self._run("pipeline", pipeline=pipeline.name).one_or_none()
        last_epoch = 0 if row is None else self._last_earlier_epoch(pipeline.name, row.generation)
        kept = {}
        for sink in pipeline.tables:
            target = find_target(self._connection, sink.table)
            if sink.mode == "upsert" and target is not None:
                kept[sink.table] = bool(kept_order(sink, target, last_epoch))
        return kept

    def restart_order(self, pipeline: Pipeline) -> None:
        for sink in pipeline.tables:
            name = deleted_keys_table(pipeline.name, sink.table)
            if sink.mode != "upsert" or sink.aggregated or find_target(self._connection, f"epochline.{name}") is None:
                continue
            # A target row tells its generation by its epoch. Deleted keys have no epoch, so they lose their position.
            forgotten = "DELETE FROM epochline.{name}"
            if sink.order_by:
                forgotten = "UPDATE epochline.{name} SET _topic = '', _partition = -1, _offset = -1, _row = -1"
            change(self._connection, forgotten, name=name)

    def create(self, pipeline: Pipeline) -> Sequence[str]:
        created = []
        for sink in pipeline.tables:
            target = find_target(self._connection, sink.table)
            if target is not None:
                check_existing(self._connection, pipeline, sink, target)
                if isinstance(sink, StateTable):
                    mend(self._connection, sink.table)
            elif sink.columns is not None:
                refuse_lost(self._connection, pipeline, sink)
                table = sql.Identifier(*split_table(sink.table))
                self._create_schema(table.strings[0])
                updated = sink.mode in ("upsert", "add")
                self._create_table(table, defined_columns(table_definition(pipeline, sink)), sink.key, updated=updated)
                if isinstance(sink, StateTable):
                    follow(self._connection, sink.table)
                if pipeline.windows is not None and sink in pipeline.states:
                    # To find windows that close among many open ones.
                    change(self._connection, "CREATE INDEX ON {table} ({end})", table=table, end=END)
                if isinstance(sink, Outbox):
                    # To find and delete the rows of one epoch while many epochs wait.
                    change(self._connection, "CREATE INDEX ON {table} (_epoch)", table=table)
                created.append(sink.table)
            if remembers_deleted(sink):
                created += self._create_deleted_keys(pipeline, sink)
        return created

    def _create_deleted_keys(self, pipeline: Pipeline, sink: PostgresTable) -> list[str]:
        name, target = deleted_keys_table(pipeline.name, sink.table), find_target(self._connection, sink.table)
        if target is None or find_target(self._connection, f"epochline.{name}") is not None:
            return []
        refuse_lost(self._connection, pipeline, sink)
        missing = [key for key in sink.key if key not in target.columns]
        if missing:
            raise TargetError(
                f"{pipeline.name}: target {sink.table} has no column {', '.join(missing)}, which the declaration names"
                " as its key. Add the column, or correct the declaration.",
                "migrate",
            )
        kinds = {key: target.columns[key].kind for key in sink.key}
        staged = staged_columns(pipeline, sink, kinds)
        columns = {column: staged[column] for column in (*kinds, *order_of(sink))}
        collations = {column: target.columns[column].collate for column in columns if column in target.columns}
        defined = defined_columns(columns, collations) + compose(", {c} timestamptz DEFAULT now()", c=DELETED_AT)
        self._create_table(sql.Identifier("epochline", name), defined, sink.key)
        return [f"the side table of deleted keys of {sink.table}"]

    def _create_schema(self, schema: str) -> None:
        # CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if the schema exists.
        if not self._run("schema_exists", schema=schema).scalar_one():
            change(self._connection, "CREATE SCHEMA {schema}", schema=schema)
            if self._has_owner():
                change(self._connection, "GRANT USAGE ON SCHEMA {schema} TO {owner}", schema=schema, owner=OWNER)

    def _create_table(
        self, table: sql.Identifier, columns: sql.Composed, key: Sequence[str], *, updated: bool = False
    ) -> None:
        primary = compose(", PRIMARY KEY ({key})", key=names(key)) if key else sql.SQL("")
        # A row that finds room on its page is updated without a change of any index.
        room = sql.SQL(" WITH (fillfactor = 90)" if updated else "")
        create = "CREATE TABLE {table} ({columns}{primary}){room}"
        change(self._connection, create, table=table, columns=columns, primary=primary, room=room)
        if not key:
            identify_rows(self._connection, table)
        if self._has_owner():
            rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {owner}"
            change(self._connection, rights, table=table, owner=OWNER)

    def _has_owner(self) -> bool:
        return bool(self._run("role_exists", role=OWNER).scalar_one())

    def free_connections(self) -> int:
        return int(self._run("free_connections").scalar_one())

    def count(self, staged: StagedTable) -> int | None:
        if not columns_of(self._connection, f"epochline_staging.{staged.table}"):
            return None
        [(rows,)] = query(self._connection, "SELECT count(*) FROM epochline_staging.{table}", table=staged.table)
        return int(rows)

    def held(self, staged: StagedTable) -> Held | None:
        return held(self._connection, staged.table)

    def _application(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Application:
        target = find_target(self._connection, sink.table)
        if target is None:
            raise TargetError(
                f"{pipeline.name}: target {sink.table} is gone. Nothing was changed. Bring it back.",
                f"run {pipeline.name}",
            )
        return Application(
            connection=self._connection, epoch=epoch, pipeline=pipeline, sink=sink, staged=staged, target=target,
            last_earlier_epoch=self._last_earlier_epoch(epoch.pipeline, epoch.generation),
        )  # fmt: skip

    def _last_earlier_epoch(self, pipeline: str, generation: int) -> int:
        of_generation = {"pipeline": pipeline, "generation": generation}
        return int(self._run("last_epoch_of_earlier_generations", **of_generation).scalar_one())

    def prepare(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Prepared:
        return prepare(self._application(pipeline, sink, staged, epoch))

    def measure(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Measured:
        if pipeline.bounds is None:
            return Measured()
        staged = [self._application(pipeline, sink, table, epoch) for sink, table in tables]
        return measure(self._connection, pipeline.bounds, staged)

    def try_out(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Sequence[RefusedRow]:
        tried = [self._application(pipeline, sink, staged, epoch) for sink, staged in tables]
        return try_out(self._connection, tried, epoch)

    def apply(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Mapping[str, Applied]:
        applied = [self._application(pipeline, sink, staged, epoch) for sink, staged in tables]
        images.keep_images(applied)
        # What may change one target from outside may reach every other one by it.
        watched = any(what.target.is_changed_by_others for what in applied)
        done, checks = apply_together(self._connection, applied, watched=watched)
        # A partition may have been attached since the first look.
        looks = [partial(find_target, self._connection, what.sink.table) for what in applied if what.target.partitioned]
        self._checks += [*checks, *looks]
        return done

    def cannot_undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
        reason = images.cannot_undo(self._connection, pipeline, sink, epochs)
        target = find_target(self._connection, sink.table)
        if reason is not None or target is None:
            return reason
        published = refused_by_publication(self._connection, sink, target, deletes=True)
        return None if published is None else f"{sink}: {published}"

    def difference(self, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int) -> TableDifference:
        find_target(self._connection, sink.table)  # which refuses a table of which rows may be hidden
        return accounting.difference(self._connection, sink, staged, epoch_id, samples)

    def undo(self, pipeline: Pipeline, epochs: Sequence[int]) -> Mapping[str, int]:
        changed, checks = undo(self._connection, pipeline, epochs)
        self._checks += checks
        return changed

    def account(self) -> None:
        if not self._checks:
            return
        # Deferred triggers may change rows as well.
        change(self._connection, "SET CONSTRAINTS ALL IMMEDIATE")
        for check in self._checks:
            check()

    def keep_quarantine(self, staged: StagedTable, epoch: Epoch) -> int:
        columns = [name for name in QUARANTINE_COLUMNS if name not in ("topic", "headers")]
        return change(
            self._connection,
            "INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, headers,"
            " {columns})"
            " SELECT e.pipeline, e.generation, e.epoch_id, q.topic, r.topic_id, q.headers::jsonb, {values}"
            " FROM {staging} q JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = ({pipeline}, {epoch})"
            " JOIN epochline.planned_range r USING (pipeline, epoch_id, topic, partition)",
            columns=names(columns), values=names(columns, "q"), pipeline=sql.Literal(epoch.pipeline),
            epoch=epoch.epoch_id, staging=sql.Identifier("epochline_staging", staged.table),
        )  # fmt: skip

    def allow_time(self, statement: timedelta) -> None:
        self._run("allow_time", statement=_milliseconds(statement))

    def limit_time(self, statement: timedelta, lock: timedelta) -> None:
        self._run("limit_time", statement=_milliseconds(statement), lock=_milliseconds(lock))


def _milliseconds(time: timedelta) -> str:
    return str(int(time.total_seconds() * 1000))
