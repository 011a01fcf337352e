"""One error tree. The class says whether a retry helps; the message says which epoch, what happened, what to do.

Airflow's retry policy, the command line's exit codes and the coordinator's callers all read ``retryable``
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class EpochlineError(Exception):
    """Base of every error that Epochline raises on purpose."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class StateError(EpochlineError):
    """A pipeline's state is not what its last committed epoch left; the message says what an operator may do."""


class SavepointFileError(EpochlineError):
    """A file is no savepoint, or not what was saved."""


class DownstreamError(EpochlineError):
    """A consumer's connection does not keep its work and its cursor in one transaction."""


class DeclarationError(EpochlineError):
    """A pipeline's declaration cannot work; the message names the field and the fix."""

    exit_code = 2


class StackError(EpochlineError):
    """A part of the embedded stack could not be started, stopped or reached."""


class ConfigurationError(EpochlineError):
    """A setting, connection or file that a command needs is missing or unusable."""


class SourceError(EpochlineError):
    """Kafka answered with something that no epoch may be planned on."""


class TopicMissingError(SourceError):
    """Kafka has no topic of a name that the declaration reads.

    ``topics`` are the names, ``cluster_id`` is the cluster that was asked.
    """

    def __init__(self, message: str, topics: Iterable[str] = (), cluster_id: str | None = None) -> None:
        super().__init__(message)
        self.topics = frozenset(topics)
        self.cluster_id = cluster_id


class SourceUnavailableError(SourceError):
    """Kafka did not answer, or a partition has no leader now: trying again helps."""

    retryable = True


class SourceAuthenticationError(SourceError):
    """Kafka and this client do not trust each other: user, password or certificate. Another try gives the same."""


class DataLossError(SourceError):
    """Records between the head and the log are gone, or the log is another one (traps 9, 10, 11)."""


class LedgerError(EpochlineError):
    """The ledger refuses: it is missing, of another version, or holds something impossible."""


class LedgerBehindError(LedgerError):
    """Kafka or a sink shows an epoch that the ledger does not know: the ledger went back in time, as from a backup."""


class LedgerUnavailableError(LedgerError):
    """The connection to PostgreSQL was lost or refused; whatever was in flight is settled by asking again."""

    retryable = True


class LockTimeoutError(LedgerError):
    """Another transaction held a row or table longer than the lock time-out."""

    retryable = True


class StatementTimeoutError(LedgerError):
    """A statement took longer than its time-out, or somebody cancelled it; its transaction was rolled back."""

    retryable = True


class TargetError(EpochlineError):
    """A target table cannot take this pipeline's rows: another owner, other columns, missing key."""


class SinkError(EpochlineError):
    """A sink refuses what a committed epoch has for it; the message names sink and epoch, and what to do."""


class SinkUnavailableError(SinkError):
    """A sink is down, or another process took over there: trying again helps, and nothing is lost meanwhile."""

    retryable = True


class LookupUnavailableError(EpochlineError):
    """The store that a parse looks keys up in cannot be reached: trying again helps, and no record is to blame."""

    retryable = True


class SinkAheadError(SinkError):
    """A sink shows an epoch that the ledger does not know: the ledger went back in time, as from a backup."""


class PipelinePausedError(EpochlineError):
    """An operator paused the pipeline: no epoch is planned until it is resumed."""


class PipelineDroppedError(EpochlineError):
    """An operator dropped the pipeline: its history stays, its name is used no more."""


class ActionRefusedError(EpochlineError):
    """What an operator asked for would be wrong, or has nothing to act on; nothing was changed."""


class EpochError(EpochlineError):
    """Something about one epoch."""


class EpochBusyError(EpochError):
    """Another run holds the pipeline's unfinished epoch with a live lease."""

    retryable = True


class PlanChangedError(EpochError):
    """Heads or the unfinished epoch moved between asking Kafka and planning: plan again."""

    retryable = True


class EpochFencedError(EpochError):
    """This attempt was fenced: a newer attempt, an abort or a recovery took its place. Nothing it wrote counts."""


class EpochStateError(EpochError):
    """The epoch is in a state in which this step is refused."""


class EpochNotFoundError(EpochError):
    """The ledger has no such pipeline or epoch."""


class RestartsExhaustedError(EpochError):
    """The restart strategy allows no further attempt (R1, R2)."""


class EpochTimeoutError(EpochError):
    """The epoch was not staged and sealed in time; it is aborted and its range is the next epoch's (K10)."""


class EpochAwaitsApprovalError(EpochError):
    """The unfinished epoch is pre-committed and waits for somebody's decision."""


class BeforeOriginError(EpochError):
    """A backfill's interval lies before the pipeline's origin: no run may commit it, extend-back may."""


class EpochNotCommittedError(EpochError):
    """The run ends without its epoch being committed; the message says what will finish it."""


class SealRefusedError(EpochError):
    """Staging is not complete or does not balance; the attempt failed (INV-9)."""

    retryable = True


class RecordsRefusedError(SealRefusedError):
    """A target refuses records that the parse took; the next attempt sets them aside in the quarantine."""


class OutboxTooLargeError(EpochError):
    """An epoch has more for a topic than one Kafka transaction may take; the message names the limit to lower."""


class HeadMovedError(EpochError):
    """A range no longer starts at its head: the compare-and-swap of the commit refused (INV-1)."""


class StagingLostError(EpochError):
    """A sealed epoch's staging is missing or holds other rows than its manifest (trap 21)."""


class NonDeterministicPartError(EpochError):
    """A second try of the same part gave other rows (trap 20)."""

    retryable = True


class InputCutError(EpochError):
    """Spark's input of a task broke off before its end, so that a part would lack its rest; nothing of it was kept."""

    retryable = True


class BadRecordError(EpochError):
    """A record could not be parsed or does not fit the target, and the policy is ``fail``."""


def error_of(text: str) -> EpochlineError | None:
    """The error that another process wrote down as ``Class: message``; None where it was none of ours."""
    name, _, message = text.partition(": ")
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, EpochlineError):
        return kind(message)
    return None
