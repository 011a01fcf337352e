"""Base of operator actions: a preview of the effect, then the effect itself with a row in the ledger."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from epochline.coordinator.evidence import pausing_where_behind
from epochline.coordinator.group import ConsumerGroup
from epochline.declare.base import problems
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError, ConfigurationError, EpochNotFoundError
from epochline.ports import ActionRow, Ledger, OffsetSource, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pipeline that is acted on. Without a declaration, only actions that need no Kafka work."""

    name: str
    ledger: Ledger
    declared: Pipeline | None = None
    source: OffsetSource | None = None

    def declaration(self) -> tuple[Pipeline, OffsetSource]:
        """The declaration, and the Kafka that it names.

        Raises:
            ConfigurationError: the pipeline is not declared here.
        """
        if self.declared is None or self.source is None:
            raise ConfigurationError(
                f"{self.name}: the source has to be asked for this, and no DAG file declares the pipeline, so it is not"
                " known where. Nothing was changed. Bring the declaration back."
            )
        return self.declared, self.source


class Parameters(BaseModel):
    """Parameters besides pipeline and reason. The command line takes fields marked ``argument`` by position."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """What an action would do now, for people (``lines``) and for the ledger (``before``, ``after``: JSON)."""

    lines: Sequence[str]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    epoch_id: int | None = None
    epochs: int = 0
    """How many epochs the action would write; 0 for a direct action."""
    refusal: str | None = None
    """Why the action would be refused, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An action's actor and reason. The ledger keeps both."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.actor.strip():
            raise ActionRefusedError("an action needs an actor. Nothing was changed.")
        if not self.reason.strip():
            raise ActionRefusedError("say why: the reason is kept in the ledger. Nothing was changed.")

    def __str__(self) -> str:
        return f"{self.actor}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done: the ledger's row, and lines for people."""

    row: ActionRow
    lines: Sequence[str]


Afterwards = Callable[[], Sequence[str]]
"""Work after the change is committed: repeatable, and a crash before it loses nothing. Returns lines for people."""

P = TypeVar("P", bound=Parameters)
Seen = TypeVar("Seen")


class Action(ABC, Generic[P, Seen]):
    """An operator action. ``Seen`` is what the action reads from Kafka beforehand, or None."""

    name: ClassVar[str]
    help: ClassVar[str]
    parameters: type[P]

    def parse(self, given: Any) -> P:
        """Validate the action's parameters.

        Raises:
            ActionRefusedError: a parameter is wrong. The message does not repeat its value.
        """
        try:
            return self.parameters.model_validate(given)
        except ValidationError as error:
            # Not chained: the cause shows its input.
            said = f"{self.name}: invalid parameters: {problems(error)}"
        raise ActionRefusedError(f"{said}. Nothing was changed.")

    def look(self, subject: Subject, parameters: P) -> Seen:
        """Read what the action needs from Kafka; no transaction is open. By default nothing."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def describe(self, tx: Transaction, subject: Subject, parameters: P, seen: Seen) -> ActionPreview:
        """Preview the action in ``tx``. Changes and locks nothing."""

    def admit(self, tx: Transaction, subject: Subject, parameters: P) -> None:
        """Refuse a pipeline that the ledger does not know.

        Raises:
            EpochNotFoundError: the ledger knows no such pipeline.
        """
        known(tx, subject.name)

    def preview(self, subject: Subject, parameters: P) -> ActionPreview:
        """Preview what `act` would do now.

        Raises:
            EpochNotFoundError: the ledger knows no such pipeline or epoch.
            SourceError: Kafka cannot be asked.
        """
        seen = self.look(subject, parameters)
        with subject.ledger.transaction() as tx:
            self.admit(tx, subject, parameters)
            return self.describe(tx, subject, parameters, seen)


class DirectAction(Action[P, Seen]):
    """An action that is done as soon as its transaction is committed."""

    @abstractmethod
    def change(self, tx: Transaction, subject: Subject, parameters: P, seen: Seen, request: Request) -> Afterwards:
        """Do the action, in the transaction that also writes the ledger's row. The pipeline's row is locked."""

    def act(self, subject: Subject, parameters: P, request: Request) -> Done:
        """Do the action. Preview, change and ledger row share one transaction under the pipeline's row lock.

        Raises:
            ActionRefusedError: nothing was changed.
            EpochNotFoundError, SourceError: as `preview`.
        """
        seen = self.look(subject, parameters)
        with subject.ledger.transaction() as tx:
            self.admit(tx, subject, parameters)
            tx.epochs.lock_pipeline(subject.name)
            previewed = self.describe(tx, subject, parameters, seen)
            if previewed.refusal is not None:
                raise ActionRefusedError(f"{previewed.refusal} Nothing was changed.")
            afterwards = self.change(tx, subject, parameters, seen, request)
            row = record(tx, subject, self.name, previewed, request)
        return Done(row=row, lines=afterwards())


def record(tx: Transaction, subject: Subject, action: str, done: ActionPreview, request: Request) -> ActionRow:
    """Write the ledger's row for an action done in the same transaction."""
    return tx.operators.record(
        ActionRow(
            pipeline=subject.name,
            action=action,
            epoch_id=done.epoch_id,
            actor=request.actor.strip(),
            reason=request.reason.strip(),
            before=done.before,
            after=done.after,
        )
    )


def known(tx: Transaction, pipeline: str) -> None:
    """Refuse an unknown pipeline name.

    Raises:
        EpochNotFoundError: the ledger knows no such pipeline.
    """
    if tx.epochs.pipeline(pipeline) is None:
        raise EpochNotFoundError(f"the ledger knows no pipeline {pipeline!r}. Nothing was changed.")


def nothing_else(*lines: str) -> Afterwards:
    """No work after the change; only these lines."""
    return lambda: lines


def refused(reason: str, *, lines: Sequence[str] = ()) -> ActionPreview:
    """The preview of an action that would be refused."""
    return ActionPreview(lines=lines, before={}, after={}, refusal=reason)


def refuse_older_kafka(ledger: Ledger, source: OffsetSource, pipeline: Pipeline) -> None:
    """Refuse a Kafka that went back in time, and pause the pipeline once.

    Raises:
        KafkaBehindError: as `ConsumerGroup.refuse_older`.
        SourceUnavailableError: Kafka does not answer.
    """
    with ledger.transaction() as tx:
        last = tx.receipts.last_mirror(pipeline.name)
    with pausing_where_behind(ledger, pipeline.name):
        ConsumerGroup.observe(source, pipeline, last).refuse_older()
