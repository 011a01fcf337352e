"""Runs the transform or windows of epochs again, one after another, with the state that the epochs before left.

The state is in temporary tables of the audit's session, in the types of the state tables. It begins empty with the
first epoch. From the first epoch that cannot be run again, it is not known.
"""

from collections.abc import Mapping, Sequence

import psycopg2
import pyarrow as pa

from epochline.arrow.stage.again import EpochAgain, RowsAgain
from epochline.arrow.stage.again import RunAgain as RunAgain
from epochline.audit.recorded import Recorded, RecordedEpoch, inexact
from epochline.audit.session import AuditSession
from epochline.declare.columns import DELETED
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.errors import ConfigurationError, DeclarationError, StackError
from epochline.postgres.queries.statements import change, defined_columns, names, same
from epochline.protocol.staging import StagedTable

_CHANGED = "audited_change"


class TransformsAgain:
    """Runs epochs again in their order.

    Args:
        connection: has the temporary tables.
        recorded: the ledger's records of the pipeline.
        run: runs one epoch; None if nothing can.
        epochs: those that are audited.
        first: whether they begin with the pipeline's first one.
    """

    def __init__(
        self, connection: AuditSession, recorded: Recorded, run: RunAgain | None, epochs: Sequence[RecordedEpoch], *,
        first: bool,
    ) -> None:  # fmt: skip
        self._connection, self._recorded, self._run = connection, recorded, run
        self._unable = "a transform made the rows" if run is None else None
        """Why nothing can be run."""
        self._states: dict[str, tuple[str, Mapping[str, str]]] = {}
        """By state table, its temporary table and its columns."""
        with connection.snapshot():
            changed = recorded.change_of_state()
        self._lost: str | None = None
        """Why the state is not known."""
        if not first:
            self._lost = f"the state before epoch {epochs[0].epoch_id} is not held"
        elif len({epoch.generation for epoch in epochs}) > 1:
            self._lost = "epochs of an earlier generation left state"
        elif changed is not None:
            self._lost = f"an operator changed the state: {changed}"

    def cannot(self, declared: Pipeline) -> str | None:
        """Why no epoch of a declaration can be run again from here on; None if it may be."""
        return self._unable or (self._lost if declared.states else None)

    def lose(self, declared: Pipeline, epoch: RecordedEpoch) -> None:
        """Note that an epoch was not run again."""
        if declared.states and self._lost is None:
            self._lost = f"the state that epoch {epoch.epoch_id} left is not known"

    def rows(
        self, declared: Pipeline, tables: Sequence[StagedTable], epoch: RecordedEpoch, parsed: RowsAgain,
        wanted: frozenset[str],
    ) -> RowsAgain | str:  # fmt: skip
        """The rows that an epoch should have given to the wanted destinations, or why they cannot be told."""
        why = self.cannot(declared)
        if self._run is None or why is not None:
            return why or ""
        states = {state.table: state for state in declared.states}
        try:
            for state in states.values():
                self._begin(state)
            with self._connection.snapshot():
                before = self._recorded.watermark_before(epoch)
            made = self._run(
                EpochAgain(
                    epoch_id=epoch.epoch_id, pipeline=declared, tables=tables,
                    wanted=wanted | states.keys(), parsed=parsed, before=before, after=epoch.watermark,
                    states={name: f"pg_temp.{table}" for name, (table, _) in self._states.items()},
                    session=self._connection.snapshot,
                    inexact={
                        sink.table: inexact(declared, sink, epoch.targets.get(sink.table, {}))
                        for sink in declared.tables
                    },
                )
            )  # fmt: skip
            for state in states.values():
                for batch in made[state.table]:
                    self._apply(state, epoch.epoch_id, batch)
        except psycopg2.Error:
            raise
        except StackError as error:
            self._unable = f"Spark does not start: {error}"
            return self._unable
        except (ConfigurationError, DeclarationError) as error:
            return str(error)
        except Exception as error:  # a pipeline's own function may raise anything, and Spark wraps it
            return f"today's transform fails: {type(error).__name__}"
        return made

    def _begin(self, state: StateTable) -> None:
        columns = dict(state.columns or {})
        if state.table in self._states:
            if self._states[state.table][1] != columns:
                raise ConfigurationError(f"the columns of state {state.table} changed")
            return
        name = f"audited_state_{len(self._states)}"
        with self._connection.snapshot():
            table = {"name": name, "columns": defined_columns({**columns, "_epoch": "bigint"})}
            change(self._connection, "CREATE TEMP TABLE {name} ({columns})", **table)
            change(self._connection, "CREATE INDEX ON {name} ({key})", name=name, key=names(state.key))
        self._states[state.table] = name, columns

    def _apply(self, state: StateTable, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Change the temporary state as a commit changes the state table."""
        if not rows.num_rows:
            return
        name, columns = self._states[state.table]
        written = {**columns, DELETED: "boolean"}
        parts = {"new": _CHANGED, "columns": names(columns), "state": name, "epoch": epoch_id, "deleted": DELETED}
        with self._connection.snapshot() as session:
            change(self._connection, "CREATE TEMP TABLE {new} ({w})", new=_CHANGED, w=defined_columns(written))
            session.copy_rows(_CHANGED, written, rows)
            alike = same(state.key, "s", "n")
            change(self._connection, "DELETE FROM {state} s USING {new} n WHERE {alike}", **parts, alike=alike)
            change(
                self._connection,
                "INSERT INTO {state} ({columns}, _epoch) SELECT {columns}, {epoch} FROM {new} WHERE NOT {deleted}",
                **parts,
            )
            change(self._connection, "DROP TABLE {new}", new=_CHANGED)
