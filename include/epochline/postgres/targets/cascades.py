"""The rows that an epoch's deletes and updates take along by foreign keys, so that before-images keep them as well."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.state import StateTable
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.fates import with_fate
from epochline.postgres.targets.foreign_keys import ForeignKey, Place
from epochline.postgres.targets.references import DELETES, UPDATES, referring
from epochline.protocol.epoch import Epoch

log = logging.getLogger(__name__)


class Cascades:
    """What foreign keys will do when an epoch is applied.

    ``taken`` has temporary tables with rows of a target that a foreign key deletes or changes, by the target's table.
    ``not_kept`` has the tables of sinks from which a key reaches rows that no before-image can keep: rows of a table
    that is no target of the pipeline, or whose target keeps no before-images. Their epoch cannot be undone.
    """

    def __init__(self, connection: Connection, tables: Sequence[Application], epoch: Epoch) -> None:
        self.taken: dict[str, list[sql.Identifier]] = defaultdict(list)
        self.not_kept: set[str] = set()
        self._connection, self._epoch = connection, epoch
        self._targets: dict[Place, Application] = {what.target.place: what for what in tables}
        self._numbers = itertools.count(1)
        for what in tables:
            if what.sink.mode == "upsert" and not isinstance(what.sink, StateTable):
                self._begin(what)

    def _begin(self, what: Application) -> None:
        deletes = sql.SQL("_fate = 'deleted'")
        self._deleted(what, what, self._rows(what, what.sink.key, deletes))
        for key in what.target.foreign_keys_to_it:
            columns = [name for name in key.referenced if name in what.carried and name not in what.sink.key]
            if key.on_update in UPDATES and columns:
                moved = sql.SQL("_fate = 'updated' AND ({}) IS DISTINCT FROM ({})").format(
                    names(columns, "t"), names(columns, "f")
                )
                self._fires(what, key, UPDATES[key.on_update], self._rows(what, [*what.sink.key, *columns], moved))

    def _rows(self, what: Application, columns: Sequence[str], condition: sql.Composable) -> sql.Composed:
        """A query for the target's rows that the epoch deletes or changes."""
        return sql.SQL("SELECT t.* FROM {target} t JOIN ({fates}) f ON {same} WHERE {condition}").format(
            target=what.target.identifier, fates=with_fate(what, names(columns, "w"), "_fate"),
            same=same(what.sink.key, "t", "f"), condition=condition,
        )  # fmt: skip

    def _deleted(self, origin: Application, what: Application, rows: sql.Composable) -> None:
        for key in what.target.foreign_keys_to_it:
            if key.on_delete in DELETES:
                self._fires(origin, key, DELETES[key.on_delete], rows)

    def _fires(self, origin: Application, key: ForeignKey, does: str, rows: sql.Composable) -> None:
        child = self._targets.get(key.child)
        if child is not None and (isinstance(child.sink, StateTable) or child.sink.mode == "replace"):
            return  # A restore puts back the whole table, or none of it.
        if child is None or not child.sink.before_images:
            said = referring(self._connection, key, rows, sql.SQL("true"))
            if said is not None:
                self.not_kept.add(origin.sink.table)
                log.warning(
                    "before_image.incomplete epoch=%s sink=%s: %s, and its foreign key %s %s. No before-image of the"
                    " epoch is kept, so it cannot be undone.", self._epoch, origin.sink, said, key.name, does,
                )  # fmt: skip
            return
        taken = sql.Identifier("pg_temp", f"epochline_taken_{next(self._numbers)}")
        known = [
            sql.SQL(" AND NOT EXISTS (SELECT FROM {} k WHERE {})").format(one, same(child.sink.key, "k", "r"))
            for one in self.taken[child.sink.table]
        ]
        statement = sql.SQL(
            "CREATE TEMP TABLE {taken} ON COMMIT DROP AS SELECT r.* FROM {child} r"
            " WHERE EXISTS (SELECT FROM ({rows}) x WHERE ({referred}) = ({columns})){known}"
        ).format(
            taken=sql.Identifier(taken.strings[1]), child=child.target.identifier, rows=rows,
            referred=names(key.referenced, "x"), columns=names(key.columns, "r"), known=sql.SQL("").join(known),
        )  # fmt: skip
        if execute_sql(self._connection, statement)[0]:
            self.taken[child.sink.table].append(taken)
            if does == DELETES["c"]:
                self._deleted(origin, child, sql.SQL("SELECT * FROM {}").format(taken))
