"""Attempts and their staging in memory, and what a Spark job writes."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.ports import Manifest
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.epoch import Attempt, AttemptState, Epoch, EpochState, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables
from tests.in_memory.rows import AttemptRow, Key, Side


class FakeAttempts(Side):
    """Implements `epochline.ports.Attempts`."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        number, attempt_id = epoch.attempt + 1, len(self.rows.attempts) + 1
        tables = staged_tables(pipeline, targets, epoch.epoch_id, number)
        attempt = Attempt(
            attempt_id=attempt_id, pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, number=number,
            token=str(uuid.uuid4()), state=AttemptState.RUNNING,
        )  # fmt: skip
        self.rows.attempts[attempt_id] = AttemptRow(attempt=attempt, tables=tables)
        self.rows.staging.update({staged.table: [] for staged in tables})
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.epochs[key] = replace(self.rows.epochs[key], attempt=number)
        return self.ticket(attempt, pipeline, targets)

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        return StagingTicket(
            pipeline=attempt.pipeline, epoch_id=attempt.epoch_id, attempt=attempt.number,
            attempt_id=attempt.attempt_id, application_name=attempt.application_name,
            tables=self.rows.attempts[attempt.attempt_id].tables,
            token=attempt.token, external=staged_external(pipeline),
        )  # fmt: skip

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        epoch = self._tx.epochs.find(pipeline, epoch_id)
        live = None if epoch is None or epoch.state is not EpochState.COMMITTED else self.live(epoch)
        return None if live is None else live.token

    def of(self, epoch: Epoch) -> list[Attempt]:
        """The epoch's attempts, oldest first."""
        attempts = [row.attempt for row in self.rows.attempts.values()]
        return [one for one in attempts if (one.pipeline, one.epoch_id) == (epoch.pipeline, epoch.epoch_id)]

    def live(self, epoch: Epoch) -> Attempt | None:
        return next((attempt for attempt in self.of(epoch) if not attempt.fenced), None)

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        return self.rows.attempts[attempt.attempt_id].attempt

    def fence(self, attempt: Attempt, reason: str) -> None:
        self.rows.failed_at.setdefault(attempt.attempt_id, self._now())
        failed = self.rows.attempts[attempt.attempt_id].attempt.error_class is not None
        state = AttemptState.FAILED if failed else AttemptState.FENCED
        self.change(attempt, fenced=True, state=state, error=self._with(attempt, reason))

    def note_error(self, attempt: Attempt, error: RecordedError) -> None:
        known = self.rows.attempts[attempt.attempt_id].attempt
        if not known.fenced and str(error) not in (known.error or ""):
            self.rows.failed_at.setdefault(attempt.attempt_id, self._now())
            self.change(
                attempt, error=self._with(attempt, str(error)),
                state=known.state if known.sealed else AttemptState.FAILED,
                error_class=known.error_class or error.error_class,
                error_command=known.error_command or error.command,
            )  # fmt: skip

    def _with(self, attempt: Attempt, added: str) -> str:
        known = self.rows.attempts[attempt.attempt_id].attempt.error
        return "; ".join(filter(None, (known, added)))

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        self.change(attempt, sealed=True, state=AttemptState.SEALED)

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        pass

    def finish(self, attempt: Attempt) -> None:
        self.change(attempt, state=AttemptState.COMMITTED)

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        return list(self.rows.attempts[attempt.attempt_id].manifests.values())

    def part_sums(self, attempt: Attempt) -> Sequence[Manifest]:
        sums: dict[tuple[str, str], Manifest] = {}
        for part, _ in self.rows.attempts[attempt.attempt_id].parts:
            old = sums.get((part.sink, part.write_id))
            sums[part.sink, part.write_id] = (
                part if old is None else replace(old, parts=old.parts + 1, rows=old.rows + part.rows)
            )
        return list(sums.values())

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        parts = [part for part, _ in self.rows.attempts[attempt.attempt_id].parts if part.sink == sink]
        return [WrittenPart(number=number, rows=part.rows, message={}) for number, part in enumerate(parts)]

    def seen(self, attempt: Attempt) -> Mapping[Key, PartitionCounts]:
        return add_up(seen for _, seen in self.rows.attempts[attempt.attempt_id].parts)

    def end_sessions(self, attempt: Attempt) -> int:
        return 0

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        over = (EpochState.COMMITTED, EpochState.ABORTED)
        return [
            row.attempt
            for row in self.rows.attempts.values()
            if row.attempt.pipeline == pipeline
            and not row.dropped
            and (row.attempt.fenced or self.rows.epochs[pipeline, row.attempt.epoch_id].state in over)
        ]

    def unexplained(self) -> Sequence[str]:
        known = {staged.table for row in self.rows.attempts.values() if not row.dropped for staged in row.tables}
        return sorted(set(self.rows.staging) - known)

    def drop_staging(self, attempt: Attempt) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        row.dropped = True
        for staged in row.tables:
            self.rows.staging.pop(staged.table, None)

    def change(self, attempt: Attempt, **facts: Any) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        row.attempt = replace(row.attempt, **facts)


class FakeJob(Side):
    """Writes parts and manifests as a Spark job does."""

    def write_part(
        self, ticket: StagingTicket, rows: Mapping[str, list[dict[str, Any]]], seen: Mapping[Key, PartitionCounts]
    ) -> bool:
        """Stage one part and count it per sink. Returns False and counts a fenced write if the attempt is not live."""
        row = self.rows.attempts[ticket.attempt_id]
        if row.attempt.fenced or row.attempt.sealed:
            row.fenced_writes += 1
            return False
        for staged in ticket.written:
            new = rows.get(staged.sink, [])
            if staged in ticket.tables:
                self.rows.staging[staged.table] += new
            part = Manifest(sink=staged.sink, write_id="w", parts=1, rows=len(new))
            row.parts.append((part, dict(seen) if staged.sink == QUARANTINE else {}))
        return True

    def end(self, ticket: StagingTicket) -> None:
        """Write the manifests and the end mark."""
        row = self.rows.attempts[ticket.attempt_id]
        row.manifests = {
            part.sink: Manifest(sink=part.sink, write_id=part.write_id, parts=part.parts, rows=part.rows)
            for part in self._tx.attempts.part_sums(row.attempt)
        }
        self._tx.attempts.change(row.attempt, ended=True)
