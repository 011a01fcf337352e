"""Receipts, which tell which sink shows which epoch: the adapter behind `epochline.ports.Receipts`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from psycopg2 import sql
from sqlalchemy import Row

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.ports import Accepted, AnnouncedReceipt, DueReceipt, Upserted
from epochline.postgres.ledger.rows import committable, key_of
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import InTransaction
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.sink import Committable, ShownEpoch

ANNOUNCED_AT_ONCE = 100
"""Most receipts that one task announces. The next task announces the rest."""


class PostgresReceipts(InTransaction):
    """Receipts in a table of the ledger, one per committed epoch and sink."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        for sink, body in bodies.items():
            self._run("keep_sealed", attempt_id=attempt.attempt_id, sink=sink, body=json.dumps(body))

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        for output in pipeline.outputs:
            if output.name in shown_before:
                continue
            done = upserted.get(output.name)
            counts = dict.fromkeys(Upserted.__slots__) if done is None else asdict(done)
            receipt = {"sink": output.name, "manifest": output.staged_as, "shown": output.shown_at_commit, **counts}
            self._run("write_receipt", **key_of(epoch), attempt_id=attempt.attempt_id, **receipt)

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        rows = self._run("receipts_of_epoch", pipeline=pipeline, epoch_id=epoch_id)
        return frozenset(row.sink for row in rows)

    def knows(self, pipeline: str, token: str) -> bool:
        return bool(self._run("knows_token", pipeline=pipeline, token=token).scalar_one())

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        reached = None if shown.reached is None else json.dumps(shown.reached)
        values = {"generation": shown.generation, "epoch_id": shown.epoch_id, "token": shown.token, "reached": reached}
        self._run("accept_epoch", pipeline=pipeline, shown_by=shown_by, **values)

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        def shown(row: Row[Any]) -> ShownEpoch:
            return ShownEpoch(generation=row.generation, epoch_id=row.epoch_id, token=row.token, reached=row.reached)

        rows = self._run("accepted_epochs", pipeline=pipeline)
        return [Accepted(shown_by=row.shown_by, shown=shown(row)) for row in rows]

    def begin_mirror(self, pipeline: str, generation: int, epoch_id: int, topics: Sequence[str]) -> int:
        values = {"generation": generation, "epoch_id": epoch_id, "topics": list(topics)}
        return int(self._run("begin_mirror", pipeline=pipeline, **values).scalar_one())

    def confirm_mirror(self, pipeline: str, number: int) -> None:
        self._run("confirm_mirror", pipeline=pipeline, number=number)
        self._run("delete_replaced_mirrors", pipeline=pipeline)

    def last_mirror(self, pipeline: str) -> LastMirror | None:
        row = self._run("last_mirror", pipeline=pipeline).mappings().one_or_none()
        return None if row is None else LastMirror(**row)

    def forget_mirrors(self, pipeline: str, topic: str | None = None) -> None:
        if topic is None:
            self._run("forget_mirrors", pipeline=pipeline)
        else:
            self._run("forget_mirrors_of_topic", pipeline=pipeline, topic=topic)

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        return [
            DueReceipt(
                pipeline=pipeline, epoch_id=row.epoch_id, sink=row.sink, tried=row.tried,
                committable=committable(pipeline, row),
            )
            for row in self._run("due_receipts", pipeline=pipeline)
        ]  # fmt: skip

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        return {row.sink: row.epochs for row in self._run("unpublished", pipeline=pipeline)}

    def try_to_show(self, receipt: DueReceipt) -> bool:
        return self._run("try_to_show", **key_of(receipt), sink=receipt.sink).rowcount == 1

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        noted = self._run("mark_shown", **key_of(receipt), sink=receipt.sink, seconds=seconds).rowcount == 1
        if outbox is not None:
            sent = sql.SQL("DELETE FROM {} WHERE _epoch = %s").format(sql.Identifier(*split_table(outbox)))
            execute_sql(self._connection, sent, (receipt.epoch_id,))
        return noted

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        rows = self._run("receipts_of_epoch", pipeline=pipeline, epoch_id=epoch_id).all()
        return {row.sink: committable(pipeline, row) for row in rows} if all(row.shown for row in rows) else {}

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        rows = self._run("unannounced_receipts", pipeline=pipeline, most=ANNOUNCED_AT_ONCE).mappings()
        return [AnnouncedReceipt(**row) for row in rows]

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        for receipt in receipts:
            of_receipt = {"epoch_id": receipt.epoch_id, "sink": receipt.sink}
            self._run("announce_receipt", pipeline=pipeline, **of_receipt, run_id=run.run_id)

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        for receipt in receipts:
            self._run("acknowledge_receipt", pipeline=pipeline, epoch_id=receipt.epoch_id, sink=receipt.sink)
