"""The epoch and its attempts, as values, and the one table of state transitions. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime

from epochline.errors import EpochStateError
from epochline.protocol.sink import SinkAttempt


class EpochState(enum.StrEnum):
    """State of an epoch; `NEXT` lists its transitions."""

    PLANNED = "PLANNED"
    PRE_COMMITTED = "PRE_COMMITTED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


NEXT: dict[EpochState, frozenset[EpochState]] = {
    EpochState.PLANNED: frozenset({EpochState.PRE_COMMITTED, EpochState.ABORTED}),
    EpochState.PRE_COMMITTED: frozenset({EpochState.COMMITTED, EpochState.ABORTED}),
    EpochState.ABORTED: frozenset({EpochState.PLANNED}),
    EpochState.COMMITTED: frozenset(),
}
"""All transitions. A committed epoch never changes; only its own run may re-open an aborted one."""

UNFINISHED = frozenset({EpochState.PLANNED, EpochState.PRE_COMMITTED})


class AttemptState(enum.StrEnum):
    """State of one try at staging an epoch."""

    RUNNING = "RUNNING"
    SEALED = "SEALED"
    FAILED = "FAILED"
    FENCED = "FENCED"
    COMMITTED = "COMMITTED"


class EpochKind(enum.StrEnum):
    """Why the epoch exists."""

    REGULAR = "regular"
    BACKFILL = "backfill"
    REQUEUE = "requeue"
    EXTEND_BACK = "extend_back"
    IDLE = "idle"
    """Reads nothing: closes windows of an idle source."""
    RESTORE = "restore"
    """Reads nothing: restores a savepoint, and is committed at once."""
    REPLAY = "replay"
    """Reads the ranges of a committed epoch again, to compare it or to replace it."""


class Approval(enum.StrEnum):
    """What the seal found of an epoch whose declaration has bounds, and what a person decided."""

    INSIDE = "inside"
    AWAITED = "awaited"
    APPROVED = "approved"


class CommitOutcome(enum.StrEnum):
    """What a commit found and did."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already_committed"


class AbortOutcome(enum.StrEnum):
    """What an abort found and did."""

    ABORTED = "aborted"
    ALREADY_ABORTED = "already_aborted"
    ALREADY_COMMITTED = "already_committed"
    LEFT_FOR_RECOVERY = "left_for_recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Identity of a run: one Airflow DAG run, or one run of the command line."""

    dag_id: str
    run_id: str
    host: str

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.dag_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The time ``[start, until)`` of a backfill run, by the timestamps of records. Both have a time zone."""

    start: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.until.tzinfo is None:
            raise ValueError("an interval's times need a time zone")
        if self.until <= self.start:
            raise ValueError(f"an interval needs start < until, got {self}")

    def __str__(self) -> str:
        return f"[{self.start.isoformat()}, {self.until.isoformat()})"


def moment_of(text: str) -> datetime:
    """The time that an operator gives in ISO 8601, in UTC without a zone; raises ``ValueError`` for another text."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Records of an epoch, as the seal counted them (INV-9): read = passed + skipped + quarantined."""

    read: int = 0
    passed: int = 0
    skipped: int = 0
    quarantined: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            read=self.read + other.read,
            passed=self.passed + other.passed,
            skipped=self.skipped + other.skipped,
            quarantined=self.quarantined + other.quarantined,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One row of the ledger's epochs. Ids count up per pipeline; ``attempt`` is the newest attempt's number, or 0."""

    pipeline: str
    epoch_id: int
    generation: int
    state: EpochState
    attempt: int
    kind: EpochKind
    run: Run
    declaration_hash: str
    lease_expired: bool
    planned_at: datetime
    approval: str | None = None
    """An `Approval`; None without bounds, and before the seal."""
    judged_attempt: int | None = None
    """Number of the attempt whose rows `approval` is about."""
    outside: str | None = None
    """How the epoch differs from its bounds, in words."""
    decided_by: str | None = None
    decided_at: datetime | None = None
    decided_reason: str | None = None
    note: str | None = None
    error: str | None = None
    error_class: str | None = None
    error_command: str | None = None
    pre_committed_at: datetime | None = None
    committed_at: datetime | None = None
    aborted_at: datetime | None = None
    counts: Counts = Counts()
    rows_written: int | None = None
    record_limit: int | None = None
    """Most offsets that its plan allowed; None for no limit."""
    interval: Interval | None = None
    replays: int | None = None
    attempts_before: int = 0
    """Number of the newest attempt when the epoch was last planned."""

    def __str__(self) -> str:
        return f"epoch {self.epoch_id} of {self.pipeline}"

    def to(self, state: EpochState) -> EpochState:
        """Check a transition against `NEXT`; raises `EpochStateError`."""
        if state not in NEXT[self.state]:
            raise EpochStateError(f"{self}: is {self.state} and cannot become {state}; nothing was changed.")
        return state

    def belongs_to(self, run: Run) -> bool:
        """Whether this run planned the epoch. The host is ignored, because a cleared run may move to another."""
        return (self.run.dag_id, self.run.run_id) == (run.dag_id, run.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at staging an epoch: its number, its token and the mark its sessions carry."""

    attempt_id: int
    pipeline: str
    epoch_id: int
    number: int
    token: str
    state: AttemptState
    sealed: bool = False
    fenced: bool = False
    ended: bool = False
    """Whether the job wrote its end mark. Without one the attempt failed, whatever the exit code says."""
    error: str | None = None
    """Why the attempt failed, as ``Class: message``, then why it was fenced, each after ``; ``."""
    error_class: str | None = None
    error_command: str | None = None
    generation: int = 1

    @property
    def application_name(self) -> str:
        """``application_name`` of every session that writes for this attempt, as ``pg_stat_activity`` shows it."""
        return f"epochline:{self.attempt_id}:{self.token[:8]}"

    @property
    def sink_attempt(self) -> SinkAttempt:
        """The attempt, as sinks know it."""
        return SinkAttempt(
            pipeline=self.pipeline, generation=self.generation, epoch_id=self.epoch_id, attempt=self.number,
            token=self.token,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"attempt {self.number} of epoch {self.epoch_id} of {self.pipeline}"
