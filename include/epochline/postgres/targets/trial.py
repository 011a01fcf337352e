"""The trial at the seal: apply staging as the commit will, find the rows that a target refuses, and roll back.

A sealed epoch can commit: what the catalog does not tell is tried here.
"""

import logging
from collections.abc import Sequence

import psycopg2

from epochline.errors import RowsRefusedError, TargetError
from epochline.postgres.queries.statements import Connection, change
from epochline.postgres.targets.accounting import Check
from epochline.postgres.targets.application import Application, attempt, error_in_words, refusal_by
from epochline.postgres.targets.blame import Suspects
from epochline.postgres.targets.together import apply_together
from epochline.postgres.targets.undo import undo
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import MOST, RefusedRow, Search

log = logging.getLogger(__name__)


def try_out(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> list[RefusedRow]:
    """Apply staging to these targets, check deferred constraints, and roll back; return the refused rows.

    If that fails, records to blame are looked for and left out until the rest can be applied, or until the time of one
    statement of the commit has passed. Of a target whose rows belong to no single record, only the first row is found.

    Raises:
        RowsRefusedError, TargetCodeError: the rows fail together, but none fails alone, or none was found in time.
    """
    change(connection, "SAVEPOINT trial")
    try:
        refused = _refused(connection, tables, epoch)
    except TargetError as error:
        raise RowsRefusedError(f"{epoch}: a trial shows that the epoch could not commit: {error}") from error
    change(connection, "ROLLBACK TO SAVEPOINT trial")
    return refused


def _refused(connection: Connection, tables: Sequence[Application], epoch: Epoch) -> list[RefusedRow]:
    undone: list[Check] = []
    if epoch.replays is not None:
        try:
            # A promotion takes the replayed epoch's rows away first.
            _, undone = undo(connection, tables[0].pipeline, [epoch.replays])
            _check(connection, undone)
        except TargetError:
            return []  # It can only be compared, and a promotion says why.

    def report(progress: str) -> None:
        log.warning("seal.searches pipeline=%s epoch=%d %s", epoch.pipeline, epoch.epoch_id, progress)

    refused: list[RefusedRow] = []
    error = _fails(connection, tables, undone)
    if error is None:
        return refused
    search = Search(tables[0].pipeline.commit_statement_timeout, report)
    suspects = Suspects(connection, tables, search)
    while error is not None:
        # A statement that PostgreSQL does not support, as with a rewrite rule, says nothing of any row.
        blamed = [] if (error.pgcode or "").startswith("0A") else suspects.blamed()
        if not blamed and not refused:
            log_text, _ = error_in_words(error)
            why = "No row alone is to blame."
            if search.is_over:
                why = f"No row was found to blame within {search.within}: declare a longer commit_statement_timeout."
            raise refusal_by(error)(
                f"{epoch}: the rows for {', '.join(str(what.sink) for what in tables)} are refused: {log_text}. {why}"
                " Nothing was sealed."
            )
        refused += blamed
        if not blamed or len(refused) >= MOST or search.is_over or any(row.place is None for row in blamed):
            break
        error = _fails(connection, suspects.left, undone)
    return refused[:MOST]


def _check(connection: Connection, checks: Sequence[Check]) -> None:
    """Look at the targets as the end of a commit does, after deferred constraints and triggers."""
    change(connection, "SET CONSTRAINTS ALL IMMEDIATE")
    for check in checks:
        check()


def _fails(connection: Connection, tables: Sequence[Application], undone: Sequence[Check]) -> psycopg2.Error | None:
    """Apply staging, and roll back; returns the error if the target refuses it.

    The rows of a replay must not disturb what it takes away, which the checks ``undone`` tell.
    """

    def apply_all() -> None:
        applied, checks = apply_together(connection, tables, watched=True)
        for what in tables:
            if what.sink.mode not in ("append", "replace"):
                continue
            arrived = applied[what.sink.table].accounted
            if what.number("SELECT count(*) FROM {staging}") != arrived:
                raise RowsRefusedError(
                    f"{what.epoch}: of the rows for {what.sink} only {arrived} arrived in a trial: a trigger or rule of"
                    " the table drops rows. Remove it. Nothing was sealed."
                )
        _check(connection, [*undone, *checks])

    return attempt(connection, apply_all, keep=False)
