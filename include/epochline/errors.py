"""One error tree. The class says whether a retry helps; the message says which epoch, what happened, what to do.

Airflow's retry policy and the coordinator's callers decide by ``retryable`` alone, the command line by ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class EpochlineError(Exception):
    """Base of every error that Epochline raises on purpose."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class StateError(EpochlineError):
    """A pipeline's state differs from what its last committed epoch left; the message says what an operator may do."""


class SavepointFileError(EpochlineError):
    """A file is not a savepoint, or is damaged."""


class DownstreamError(EpochlineError):
    """A consumer's connection does not keep its work and its cursor in one transaction."""


class DeclarationError(EpochlineError):
    """A pipeline's declaration is invalid; the message names the field and the fix."""

    exit_code = 2


class StackError(EpochlineError):
    """A part of the embedded stack could not be started, stopped or reached."""


class ConfigurationError(EpochlineError):
    """A setting, connection or file that a command needs is missing or unusable."""


class SourceError(EpochlineError):
    """No epoch may be planned on what Kafka answered."""


class TopicMissingError(SourceError):
    """Kafka has no topic of a declared name.

    ``topics`` holds the names, ``cluster_id`` the cluster that was asked.
    """

    def __init__(self, message: str, topics: Iterable[str] = (), cluster_id: str | None = None) -> None:
        super().__init__(message)
        self.topics = frozenset(topics)
        self.cluster_id = cluster_id


class SourceUnavailableError(SourceError):
    """Kafka did not answer, or a partition has no leader: a retry helps."""

    retryable = True


class SourceAuthenticationError(SourceError):
    """Kafka or this client rejects a user, a password or a certificate. A retry gives the same."""


class DataLossError(SourceError):
    """Records after a head are gone, or a topic's log was replaced or truncated (INV-9)."""


class LedgerError(EpochlineError):
    """The ledger is missing, has another version, or refuses a change."""


class LedgerBehindError(LedgerError):
    """Kafka or a sink shows an epoch that the ledger does not know: an older ledger was restored from a backup."""


class LedgerUnavailableError(LedgerError):
    """The connection to PostgreSQL was lost or refused. The outcome of a lost commit is read from the ledger later."""

    retryable = True


class LockTimeoutError(LedgerError):
    """Another transaction held a row or table longer than the lock time-out."""

    retryable = True


class StatementTimeoutError(LedgerError):
    """A statement was cancelled, by its time-out or by hand; its transaction was rolled back."""

    retryable = True


class TargetError(EpochlineError):
    """A target table cannot take this pipeline's rows: it has another owner, other columns or no key."""


class SinkError(EpochlineError):
    """A sink refuses the rows of a committed epoch; the message names sink and epoch, and what to do."""


class SinkUnavailableError(SinkError):
    """A sink is down, or another process publishes to it: a retry helps, and nothing is lost meanwhile."""

    retryable = True


class LookupUnavailableError(EpochlineError):
    """The store of a parse's look-ups cannot be reached: a retry helps, and no record is bad."""

    retryable = True


class SinkAheadError(SinkError):
    """A sink shows an epoch that the ledger does not know: an older ledger was restored from a backup."""


class PipelinePausedError(EpochlineError):
    """An operator paused the pipeline: no epoch is planned until it is resumed."""


class PipelineDroppedError(EpochlineError):
    """An operator dropped the pipeline: its history stays, and its name cannot be reused."""


class ActionRefusedError(EpochlineError):
    """An operator's action would be wrong or has nothing to act on; nothing was changed."""


class EpochError(EpochlineError):
    """Base of the errors about one epoch."""


class EpochBusyError(EpochError):
    """Another run holds the pipeline's unfinished epoch with a live lease."""

    retryable = True


class PlanChangedError(EpochError):
    """A head or the unfinished epoch changed between the look at Kafka and the plan: plan again."""

    retryable = True


class EpochFencedError(EpochError):
    """This attempt was fenced by a newer attempt, an abort or a recovery. Nothing that it wrote counts."""


class EpochStateError(EpochError):
    """The epoch's state does not allow this step."""


class EpochNotFoundError(EpochError):
    """The ledger has no such pipeline or epoch."""


class RestartsExhaustedError(EpochError):
    """The restart strategy allows no further attempt (R1, R2)."""


class EpochTimeoutError(EpochError):
    """The epoch was not staged and sealed in time; it is aborted and the next epoch takes its range (K10)."""


class EpochAwaitsApprovalError(EpochError):
    """The unfinished epoch is pre-committed and waits for approval."""


class BeforeOriginError(EpochError):
    """A backfill's interval lies before the pipeline's origin: only ``extend-back`` may commit it."""


class EpochNotCommittedError(EpochError):
    """The run ends without committing its epoch; the message says what will finish the epoch."""


class SealRefusedError(EpochError):
    """Staging is incomplete or does not balance; the attempt failed (INV-9)."""

    retryable = True


class RecordsRefusedError(SealRefusedError):
    """A target refuses parsed records; the next attempt moves them to the quarantine."""


class OutboxTooLargeError(EpochError):
    """An epoch has more rows for a topic than one Kafka transaction may take; the message names the limit to lower."""


class HeadMovedError(EpochError):
    """A range no longer starts at its head, so the commit's compare-and-swap failed (INV-1)."""


class StagingLostError(EpochError):
    """A sealed epoch's staging is missing or differs from its manifest (INV-6)."""


class NonDeterministicPartError(EpochError):
    """A second try of a part gave other rows."""

    retryable = True


class InputCutError(EpochError):
    """Spark's input of a task broke off, so that its part would be incomplete; nothing of the part was kept."""

    retryable = True


class BadRecordError(EpochError):
    """A record could not be parsed or does not fit the target, and the policy is ``fail``."""


def error_of(text: str) -> EpochlineError | None:
    """Rebuild an error that another process recorded as ``Class: message``; None for any other text."""
    name, _, message = text.partition(": ")
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, EpochlineError):
        return kind(message)
    return None
