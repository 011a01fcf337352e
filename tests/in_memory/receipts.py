"""Receipts in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from epochline.declare.pipeline import Pipeline
from epochline.ports import Accepted, AnnouncedReceipt, DueReceipt, Upserted
from epochline.protocol.epoch import Attempt, Epoch, EpochState, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.sink import Committable, ShownEpoch, SinkAttempt
from tests.in_memory.rows import MirrorRow, ReceiptRow, Side


def _offsets_by_topic(ranges: Sequence[PlannedRange]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for one in ranges:
        found.setdefault(one.tp.topic, {})[str(one.tp.partition)] = [one.range.start, one.range.until]
    return found


class FakeReceipts(Side):
    """Implements `epochline.ports.Receipts`."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        for sink, body in bodies.items():
            row.manifests[sink] = replace(row.manifests[sink], body=body)

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        manifests = self.rows.attempts[attempt.attempt_id].manifests
        for output in pipeline.outputs:
            if output.name in shown_before:
                continue
            self.rows.receipts[epoch.pipeline, epoch.epoch_id, output.name] = ReceiptRow(
                committable=Committable(
                    attempt=SinkAttempt(
                        pipeline=epoch.pipeline, generation=epoch.generation, epoch_id=epoch.epoch_id,
                        attempt=attempt.number, token=attempt.token,
                    ),
                    rows=manifests[output.staged_as].rows,
                    body=manifests[output.staged_as].body or {},
                ),
                shown_at=self._now() if output.shown_at_commit else None,
            )  # fmt: skip

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        return frozenset(sink for number, sink, _ in self._receipts(pipeline) if number == epoch_id)

    def knows(self, pipeline: str, token: str) -> bool:
        known = {one.shown.token for one in self.accepted(pipeline)}
        for row in self.rows.attempts.values():
            attempt = row.attempt
            state = self.rows.epochs[attempt.pipeline, attempt.epoch_id].state
            if attempt.sealed and not attempt.fenced and state in (EpochState.PRE_COMMITTED, EpochState.COMMITTED):
                known.add(attempt.token)
        return token in known

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        self.rows.accepted.setdefault(pipeline, []).append(Accepted(shown_by=shown_by, shown=shown))

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        return list({(one.shown_by, one.shown.token): one for one in self.rows.accepted.get(pipeline, [])}.values())

    def begin_mirror(self, pipeline: str, generation: int, epoch_id: int, topics: Sequence[str]) -> int:
        mirrors = self.rows.mirrors.setdefault(pipeline, {})
        number = max(mirrors, default=0) + 1
        mirrors[number] = MirrorRow(generation=generation, epoch_id=epoch_id, topics=tuple(topics))
        for one in [one for one, row in mirrors.items() if not row.confirmed_at and one <= number - 1000]:
            del mirrors[one]
        return number

    def confirm_mirror(self, pipeline: str, number: int) -> None:
        mirrors = self.rows.mirrors[pipeline]
        mirrors[number].confirmed_at, mirrors[number].latest_then = self._now(), max(mirrors)
        newest = max(one for one, row in mirrors.items() if row.confirmed_at)
        for one in [one for one, row in mirrors.items() if row.confirmed_at and row.latest_then < newest]:
            del mirrors[one]

    def last_mirror(self, pipeline: str) -> LastMirror | None:
        mirrors = self.rows.mirrors.get(pipeline, {})
        confirmed = {number: row.confirmed_at for number, row in mirrors.items() if row.confirmed_at}
        if not confirmed:
            return None
        number = max(confirmed)
        row = mirrors[number]
        return LastMirror(
            number=number, generation=row.generation, epoch_id=row.epoch_id, topics=row.topics,
            age=self._now() - confirmed[number], after=mirrors.keys() - {number},
        )  # fmt: skip

    def forget_mirrors(self, pipeline: str, topic: str | None = None) -> None:
        for row in self.rows.mirrors.get(pipeline, {}).values():
            if topic is None:
                row.confirmed_at, row.latest_then = None, 0
            else:
                row.topics = tuple(one for one in row.topics if one != topic)

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        return [
            DueReceipt(pipeline=pipeline, epoch_id=epoch_id, sink=sink, committable=row.committable, tried=row.tried)
            for epoch_id, sink, row in self._receipts(pipeline)
            if row.shown_at is None
        ]

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        return Counter(one.sink for one in self.due(pipeline))

    def last_shown(self, pipeline: str, sink: str) -> int | None:
        shown = [epoch_id for epoch_id, name, row in self._receipts(pipeline) if name == sink and row.shown_at]
        return max(shown, default=None)

    def given_elsewhere(self, pipeline: str, sink: str, token: str, declared: Sequence[str]) -> tuple[str, int] | None:
        given = [
            (epoch, name) for epoch, name, row in self._receipts(pipeline) if row.committable.attempt.token == token
        ]
        later = [
            (name, number)
            for epoch, name in given
            for number, other, _ in self._receipts(pipeline)
            if name == other and number > epoch and name.startswith("files:") and name not in declared
        ]
        return None if any(name == sink for _, name in given) else max(later, key=lambda one: one[1], default=None)

    def try_to_show(self, receipt: DueReceipt) -> bool:
        row = self.rows.receipts[receipt.pipeline, receipt.epoch_id, receipt.sink]
        row.tried = True
        return row.shown_at is None

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        row = self.rows.receipts[receipt.pipeline, receipt.epoch_id, receipt.sink]
        if outbox is not None:
            self._tx.targets.undo_rows(outbox, [receipt.epoch_id])
        if row.shown_at is not None:
            return False
        row.shown_at = self._now()
        return True

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        own = {sink: row for number, sink, row in self._receipts(pipeline) if number == epoch_id}
        if any(row.shown_at is None for row in own.values()):
            return {}
        return {sink: row.committable for sink, row in own.items()}

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        return [
            AnnouncedReceipt(
                epoch_id=epoch_id, sink=sink, rows=row.committable.rows, shown_at=row.shown_at,
                offsets=_offsets_by_topic(self.rows.ranges[pipeline, epoch_id]),
            )
            for epoch_id, sink, row in self._receipts(pipeline)
            if row.shown_at is not None and not row.acknowledged
        ]  # fmt: skip

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        for one in receipts:
            self.rows.receipts[pipeline, one.epoch_id, one.sink].announced_by = run.run_id

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        for one in receipts:
            row = self.rows.receipts[pipeline, one.epoch_id, one.sink]
            row.acknowledged = row.announced_by is not None

    def _receipts(self, pipeline: str) -> list[tuple[int, str, ReceiptRow]]:
        rows = [(key[1], key[2], row) for key, row in self.rows.receipts.items() if key[0] == pipeline]
        return sorted(rows, key=lambda one: one[:2])
