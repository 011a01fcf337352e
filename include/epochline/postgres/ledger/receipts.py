"""Receipts, which tell which sink shows which epoch: the adapter behind `epochline.ports.Receipts`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg2 import sql
from sqlalchemy import Connection, Row

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.ports import Accepted, AnnouncedReceipt, DueReceipt, Upserted
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run as execute
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.sink import Committable, ShownEpoch, SinkAttempt

ANNOUNCED_AT_ONCE = 100
"""Most receipts that one task announces. The next task announces the rest."""


class PostgresReceipts:
    """Receipts in a table of the ledger, one per committed epoch and sink."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        for sink, body in bodies.items():
            execute(
                self._connection, "keep_sealed", attempt_id=attempt.attempt_id, sink=sink, body=json.dumps(body)
            )  # fmt: skip

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        for output in pipeline.outputs:
            if output.name in shown_before:
                continue
            execute(
                self._connection, "write_receipt",
                pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, attempt_id=attempt.attempt_id,
                sink=output.name, manifest=output.staged_as, shown=output.shown_at_commit,
                **_counts(upserted.get(output.name)),
            )  # fmt: skip

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        rows = execute(self._connection, "received", pipeline=pipeline, epoch_id=epoch_id)
        return frozenset(row.sink for row in rows)

    def knows(self, pipeline: str, token: str) -> bool:
        return bool(execute(self._connection, "knows_token", pipeline=pipeline, token=token).scalar_one())

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        reached = None if shown.reached is None else json.dumps(shown.reached)
        execute(
            self._connection, "accept_epoch",
            pipeline=pipeline, shown_by=shown_by, generation=shown.generation, epoch_id=shown.epoch_id,
            token=shown.token, reached=reached,
        )  # fmt: skip

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        return [
            Accepted(
                shown_by=row.shown_by,
                shown=ShownEpoch(
                    generation=row.generation,
                    epoch_id=row.epoch_id,
                    token=None if row.token is None else str(row.token),
                    reached=row.reached,
                ),
            )
            for row in execute(self._connection, "accepted_epochs", pipeline=pipeline)
        ]

    def begin_mirror(self, pipeline: str, generation: int, epoch_id: int, topics: Sequence[str]) -> int:
        begun = execute(
            self._connection, "begin_mirror",
            pipeline=pipeline, generation=generation, epoch_id=epoch_id, topics=list(topics),
        )  # fmt: skip
        return int(begun.scalar_one())

    def confirm_mirror(self, pipeline: str, number: int) -> None:
        execute(self._connection, "confirm_mirror", pipeline=pipeline, number=number)
        execute(self._connection, "delete_replaced_mirrors", pipeline=pipeline)

    def last_mirror(self, pipeline: str) -> LastMirror | None:
        row = execute(self._connection, "last_mirror", pipeline=pipeline).mappings().one_or_none()
        return None if row is None else LastMirror(**row)

    def forget_mirrors(self, pipeline: str, topic: str | None = None) -> None:
        if topic is None:
            execute(self._connection, "forget_mirrors", pipeline=pipeline)
        else:
            execute(self._connection, "forget_mirrors_of_topic", pipeline=pipeline, topic=topic)

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        return [
            DueReceipt(
                pipeline=pipeline,
                epoch_id=row.epoch_id,
                sink=row.sink,
                tried=row.tried,
                committable=_committable(pipeline, row),
            )
            for row in execute(self._connection, "due_receipts", pipeline=pipeline)
        ]

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        return {row.sink: row.epochs for row in execute(self._connection, "unpublished", pipeline=pipeline)}

    def try_to_show(self, receipt: DueReceipt) -> bool:
        return execute(self._connection, "try_to_show", **_key(receipt)).rowcount == 1

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        noted = execute(self._connection, "mark_shown", **_key(receipt), seconds=seconds).rowcount == 1
        if outbox is not None:
            execute_sql(
                self._connection,
                sql.SQL("DELETE FROM {} WHERE _epoch = %s").format(sql.Identifier(*split_table(outbox))),
                (receipt.epoch_id,),
            )
        return noted

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        rows = execute(self._connection, "receipts_of_epoch", pipeline=pipeline, epoch_id=epoch_id).all()
        return {row.sink: _committable(pipeline, row) for row in rows} if all(row.shown for row in rows) else {}

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        return [
            AnnouncedReceipt(
                epoch_id=row.epoch_id,
                sink=row.sink,
                rows=row.rows,
                shown_at=row.shown_at,
                offsets=row.offsets or {},
            )
            for row in execute(self._connection, "unannounced_receipts", pipeline=pipeline, most=ANNOUNCED_AT_ONCE)
        ]

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        for one in receipts:
            execute(
                self._connection, "announce_receipt",
                pipeline=pipeline, epoch_id=one.epoch_id, sink=one.sink, run_id=run.run_id,
            )  # fmt: skip

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        for one in receipts:
            execute(self._connection, "acknowledge_receipt", pipeline=pipeline, epoch_id=one.epoch_id, sink=one.sink)


def _counts(upserted: Upserted | None) -> dict[str, int | None]:
    return {name: None if upserted is None else getattr(upserted, name) for name in Upserted.__slots__}


def _committable(pipeline: str, row: Row[Any]) -> Committable:
    attempt = SinkAttempt(
        pipeline=pipeline,
        generation=row.generation,
        epoch_id=row.epoch_id,
        attempt=row.attempt,
        token=str(row.token),
    )
    return Committable(attempt=attempt, rows=row.rows, body=row.body)


def _key(receipt: DueReceipt) -> dict[str, Any]:
    return {"pipeline": receipt.pipeline, "epoch_id": receipt.epoch_id, "sink": receipt.sink}
