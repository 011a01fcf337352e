"""One error tree. The class says whether a retry helps; the message says which epoch, what happened, what to do.

Airflow's retry policy and the coordinator's callers decide by ``retryable`` alone, the command line by ``exit_code``.
What becomes of the pipeline after an epoch's last attempt follows from ``failure``.
"""

import enum
from collections.abc import Iterable
from typing import ClassVar


class Failure(enum.StrEnum):
    """What made an attempt fail, which decides what becomes of the pipeline once its epoch is aborted."""

    PASSING = "passing"
    """A time-out, a server, a process: the next run tries again, and `tolerable_failures` counts the epoch."""
    CODE = "code"
    """The user's code, or a trigger's, raises or refuses a record: after its last restart the pipeline stays down."""
    INCURABLE = "incurable"
    """The same rows are refused every time: the pipeline stays down at once."""


def one_line(text: object) -> str:
    """A text, such as an error's, without line breaks."""
    return " ".join(str(text).split())


class EpochlineError(Exception):
    """Base of every error that Epochline raises on purpose."""

    retryable: ClassVar[bool] = False
    failure: ClassVar[Failure] = Failure.PASSING
    exit_code: ClassVar[int] = 1
    command: str | None = None
    """The command that goes on, without ``epochline``; None if no single command does."""

    def __init_subclass__(cls, retryable: bool | None = None, failure: Failure | None = None) -> None:
        if retryable is not None:
            cls.retryable = retryable
        if failure is not None:
            cls.failure = failure


class PipelineStandsError(EpochlineError):
    """Base of the errors after which a pipeline stands until an operator acts.

    ``said`` is what happened and what to do first; the message ends with ``command``, without ``epochline``. The
    command is None if ``said`` is a whole message.
    """

    def __init__(self, said: str, command: str | None = None) -> None:
        super().__init__(said if command is None else f"{said} To go on, run `epochline {command}`")
        self.said = said
        self.command = command


class StateError(PipelineStandsError):
    """A pipeline's state differs from what its last committed epoch left."""


class SavepointFileError(EpochlineError):
    """A file is not a savepoint, or is damaged."""


class DownstreamError(EpochlineError):
    """A consumer's connection does not keep its work and its cursor in one transaction."""


class DeclarationError(EpochlineError):
    """A pipeline's declaration is invalid; the message names the field and the fix."""

    exit_code = 2


class ChangeRefusedError(DeclarationError, PipelineStandsError):
    """A declaration gives rows that are written another meaning: its mode or key changed."""


class StackError(EpochlineError):
    """A part of the embedded stack could not be started, stopped or reached."""


class AirflowUnavailableError(StackError, retryable=True):
    """Airflow's API does not answer, or its database is away, as while a server restarts: a retry helps."""


class JavaMissingError(StackError):
    """No supported Java runs here. ``said`` is what was found, and ``mend`` how to get one."""

    def __init__(self, message: str, said: str = "", mend: str = "") -> None:
        super().__init__(message)
        self.said = said
        self.mend = mend


class ConfigurationError(EpochlineError):
    """A setting, connection or file that a command needs is missing or unusable."""


class ExtraMissingError(ConfigurationError):
    """What is asked needs packages that only an extra of this package brings; the message has the command."""


class RightsMissingError(ConfigurationError):
    """A login of PostgreSQL may not make what is missing; ``statements`` are what a DBA has to run, in this order."""

    def __init__(self, message: str, statements: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.statements = list(statements)


class SourceError(EpochlineError):
    """No epoch may be planned on what Kafka answered."""


class TopicMissingError(SourceError):
    """Kafka lacks the declared ``topics``; ``cluster_id`` is the cluster that was asked."""

    def __init__(self, message: str, topics: Iterable[str] = (), cluster_id: str | None = None) -> None:
        super().__init__(message)
        self.topics = frozenset(topics)
        self.cluster_id = cluster_id


class SourceUnavailableError(SourceError, retryable=True):
    """Kafka did not answer, or a partition has no leader: a retry helps."""


class SourceAuthenticationError(SourceError):
    """Kafka or this client rejects a user, a password or a certificate. A retry gives the same."""


class RecordsGoneError(SourceError):
    """Kafka no longer has records of a range that is being read."""


class DataLossError(SourceError, PipelineStandsError):
    """Records after a head are gone, or a topic's log was replaced or truncated (INV-9)."""


class KafkaBehindError(DataLossError):
    """Kafka went back in time, as from a backup: the consumer group shows less than was written to it (INV-8)."""


class LedgerError(EpochlineError):
    """The ledger is missing, or refuses a change."""


class VersionError(LedgerError):
    """This version of epochline may not go on: the ledger does not allow it, or another version made what it needs."""


class LedgerBehindError(LedgerError, PipelineStandsError):
    """Kafka or a sink shows an epoch that the ledger does not know: an older ledger was restored from a backup."""


class LedgerUnavailableError(LedgerError, retryable=True):
    """The connection to PostgreSQL was lost or refused. The outcome of a lost commit is read from the ledger later."""


class LockTimeoutError(LedgerError, retryable=True):
    """Another transaction held a row or table longer than the lock time-out."""


class StatementTimeoutError(LedgerError, retryable=True):
    """A statement was cancelled, by its time-out or by hand; its transaction was rolled back."""


class TargetError(PipelineStandsError):
    """A target table cannot take this pipeline's rows: it has another owner, other columns or no key."""


class SinkError(EpochlineError):
    """A sink refuses the rows of a committed epoch; the message names sink and epoch, and what to do."""


class SinkUnavailableError(SinkError, retryable=True):
    """A sink is down, or another process publishes to it: a retry helps, and nothing is lost meanwhile."""


class LookupUnavailableError(EpochlineError, retryable=True):
    """The store of a parse's look-ups cannot be reached: a retry helps, and no record is bad."""


class SinkAheadError(SinkError, PipelineStandsError):
    """A sink shows an epoch that the ledger does not know: an older ledger was restored from a backup."""


class PipelinePausedError(PipelineStandsError):
    """An operator paused the pipeline: no epoch is planned until it is resumed."""


class PipelineDroppedError(EpochlineError):
    """An operator dropped the pipeline for good: no command makes it go on. Its history stays."""


class ActionRefusedError(EpochlineError):
    """An operator's action would be wrong or has nothing to act on; nothing was changed."""


class StalePreviewError(ActionRefusedError):
    """The state has changed since an action was previewed, or the preview is too old; nothing was changed."""


class AlreadyStartedError(ActionRefusedError):
    """A form was sent twice; the action of the first time stays, and no second one was started."""


class ForgedFormError(ActionRefusedError):
    """A form was not made here for this user, pipeline and action; nothing was changed."""


class EpochError(EpochlineError):
    """Base of the errors about one epoch."""


class EpochBusyError(EpochError, retryable=True):
    """Another run holds the pipeline's unfinished epoch with a live lease."""


class PlanChangedError(EpochError, retryable=True):
    """A head or the unfinished epoch changed between the look at Kafka and the plan: plan again."""


class EpochFencedError(EpochError):
    """This attempt was fenced by a newer attempt, an abort or a recovery. Nothing that it wrote counts."""


class EpochStateError(EpochError):
    """The epoch's state does not allow this step."""


class EpochNotFoundError(EpochError):
    """The ledger has no such pipeline or epoch."""


class RestartsExhaustedError(EpochError, PipelineStandsError):
    """The restart strategy allows no further attempt."""


class EpochTimeoutError(EpochError):
    """The epoch was not staged and sealed in time; it is aborted and the next epoch takes its range."""


class EpochAwaitsApprovalError(EpochError, PipelineStandsError):
    """The unfinished epoch is pre-committed and waits for approval."""


class BeforeOriginError(EpochError, PipelineStandsError):
    """A backfill's interval lies before the pipeline's origin: only ``extend-back`` may commit it."""


class SealRefusedError(EpochError, retryable=True):
    """Staging is incomplete or does not balance; the attempt failed (INV-9)."""


class RowsRefusedError(SealRefusedError, retryable=False, failure=Failure.INCURABLE):
    """A target refuses these rows by a constraint, a type or a privilege, and would refuse them again."""


class OutsideBoundsError(SealRefusedError, retryable=False):
    """An epoch is outside its declared bounds, which abort such an epoch. A retry reads the same records."""


class MeasureError(SealRefusedError, retryable=False, failure=Failure.CODE):
    """A query of the declared bounds failed, took too long, or gave something else than one number or condition."""


class TargetCodeError(SealRefusedError, failure=Failure.CODE):
    """A function of a target, such as a trigger, raised an error when the rows were applied."""


class RecordsRefusedError(SealRefusedError):
    """A target refuses parsed records; the next attempt moves them to the quarantine."""


class OutboxTooLargeError(EpochError, PipelineStandsError, failure=Failure.INCURABLE):
    """An epoch has more rows for a topic than one Kafka transaction may take; the message names the limit to lower."""


class HeadMovedError(EpochError, PipelineStandsError):
    """A range no longer starts at its head, so the commit's compare-and-swap failed (INV-1)."""


class StagingLostError(EpochError):
    """A sealed epoch's staging is missing or differs from its manifest (INV-6)."""


class NonDeterministicPartError(EpochError, retryable=True, failure=Failure.CODE):
    """A second try of a part gave other rows."""


class InputCutError(EpochError, retryable=True):
    """Spark's input of a task broke off, so that its part would be incomplete; nothing of the part was kept."""


class BadRecordError(EpochError, failure=Failure.CODE):
    """A record could not be parsed or does not fit the target, and the policy is ``fail``."""


class ColumnMismatchError(EpochlineError, failure=Failure.CODE):
    """A batch lacks a column, or a column's type cannot be cast to the declared one."""


class BatchContractError(EpochlineError, failure=Failure.CODE):
    """A ``parse`` or ``select`` did not return one row per input row."""


class ValueDoesNotFitError(EpochlineError, failure=Failure.CODE):
    """A value that a function returned does not fit its column."""


class JobLostError(EpochError, retryable=True):
    """The Spark job ended without a reason in the ledger: its driver was killed, or never reached the ledger."""


class EpochInterruptedError(EpochError):
    """A time-out, Ctrl-C or a signal ended the job or the seal."""


def rebuilt(error_class: str | None, message: str, command: str | None = None) -> EpochlineError | None:
    """The error that another process recorded, without the command in its message; None for another class."""
    kind = globals().get(error_class or "")
    if not (isinstance(kind, type) and issubclass(kind, EpochlineError)):
        return None
    return kind(message, command) if issubclass(kind, PipelineStandsError) else kind(message)
