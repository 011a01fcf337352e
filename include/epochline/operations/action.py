"""Base of operator actions: a preview of the effect, then the effect itself with a row in the ledger."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from epochline.coordinator.evidence import pausing_where_behind
from epochline.coordinator.mirror import mirror
from epochline.coordinator.observe import ConsumerGroup, confirmed
from epochline.declare.base import problems
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError, ConfigurationError, EpochNotFoundError, StalePreviewError
from epochline.ports import ActionRow, Ledger, OffsetSource, Parsed, PipelineRow, StoredRecord, Transaction
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pipeline that is acted on. Without a declaration, only actions that need no Kafka work."""

    name: str
    ledger: Ledger
    declared: Pipeline | None = None
    source: OffsetSource | None = None
    parse: Callable[[Pipeline, Sequence[StoredRecord]], Parsed] | None = None
    """What today's parse makes of quarantined records; None if it is not known, as in a scheduler."""

    def declaration(self) -> tuple[Pipeline, OffsetSource]:
        """The declaration and the Kafka that it names; `ConfigurationError` if the pipeline is not declared here."""
        if self.declared is None or self.source is None:
            raise ConfigurationError(
                f"{self.name}: the source has to be asked for this, and no DAG file declares the pipeline, so it is not"
                " known where. Nothing was changed. Bring the declaration back."
            )
        return self.declared, self.source


class Parameters(BaseModel):
    """Parameters besides pipeline and reason. The command line takes fields marked ``argument`` by position."""

    model_config = ConfigDict(frozen=True, extra="forbid")


P = TypeVar("P", bound=Parameters)
Seen = TypeVar("Seen")


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
class Case(Generic[P, Seen]):
    """One action on one pipeline in one transaction. ``seen`` is what `Action.look` read before."""

    tx: Transaction
    subject: Subject
    parameters: P
    seen: Seen

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.subject.name

    @property
    def declared(self) -> Pipeline:
        """The declaration; raises as `Subject.declaration`."""
        return self.subject.declaration()[0]

    @property
    def row(self) -> PipelineRow | None:
        """The ledger's row of the pipeline; None if the ledger does not know it."""
        return self.tx.epochs.pipeline(self.pipeline)

    @property
    def unfinished(self) -> Epoch | None:
        """The pipeline's unfinished epoch."""
        return self.tx.epochs.unfinished(self.pipeline)

    @property
    def heads(self) -> Sequence[Head]:
        """The heads of the present generation; none for an unknown pipeline."""
        return self.tx.chain.heads(self.pipeline, self.row.generation) if self.row else ()


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


class Action(ABC, Generic[P, Seen]):
    """An operator action. ``Seen`` is what the action reads from Kafka beforehand, or None.

    The docstring of an action is the help of its command and of its DAG.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    parameters: type[P]

    def __init_subclass__(cls) -> None:
        cls.help = " ".join((cls.__doc__ or "").split())

    def parse(self, given: Any) -> P:
        """Validate the parameters. An `ActionRefusedError` does not repeat the value of a wrong one."""
        try:
            return self.parameters.model_validate(given)
        except ValidationError as error:
            # Not chained: the cause shows its input.
            reason = f"{self.name}: invalid parameters: {problems(error)}"
        raise ActionRefusedError(f"{reason}. Nothing was changed.")

    def pinned(self, parameters: P, previewed: ActionPreview) -> P:
        """The parameters with which `act` does what was previewed, or refuses. By default they are not changed."""
        return parameters

    def look(self, subject: Subject, parameters: P) -> Seen:
        """Read what the action needs from Kafka; no transaction is open. By default nothing."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def describe(self, case: Case[P, Seen]) -> ActionPreview:
        """Preview the action. Changes and locks nothing."""

    def admit(self, case: Case[P, Seen]) -> None:
        """Raise `EpochNotFoundError` for a pipeline that the ledger does not know."""
        if case.row is None:
            raise EpochNotFoundError(f"the ledger knows no pipeline {case.pipeline!r}. Nothing was changed.")

    def preview(self, subject: Subject, parameters: P) -> ActionPreview:
        """Preview what `act` would do now.

        Raises:
            EpochNotFoundError: the ledger knows no such pipeline or epoch.
            SourceError: Kafka cannot be asked.
        """
        seen = self.look(subject, parameters)
        with subject.ledger.transaction() as tx:
            case = Case(tx=tx, subject=subject, parameters=parameters, seen=seen)
            self.admit(case)
            return self.describe(case)


class DirectAction(Action[P, Seen]):
    """An action that is done as soon as its transaction is committed."""

    @abstractmethod
    def change(self, case: Case[P, Seen], request: Request) -> Afterwards:
        """Do the action, in the transaction that also writes the ledger's row. The pipeline's row is locked."""

    def act(self, subject: Subject, parameters: P, request: Request, *, confirmed: ActionPreview | None = None) -> Done:
        """Do the action. Preview, change and ledger row share one transaction under the pipeline's row lock.

        ``confirmed`` is the preview that somebody agreed to; None if nobody was asked.

        Raises:
            StalePreviewError: the action would do something else than was agreed to; nothing was changed.
            ActionRefusedError: nothing was changed.
            EpochNotFoundError, SourceError: as `preview`.
        """
        seen = self.look(subject, parameters)
        with subject.ledger.transaction() as tx:
            case = Case(tx=tx, subject=subject, parameters=parameters, seen=seen)
            self.admit(case)
            tx.epochs.lock_pipeline(subject.name)
            previewed = self.describe(case)
            if previewed.refusal is not None:
                raise ActionRefusedError(f"{previewed.refusal} Nothing was changed.")
            refuse_other_effect(self.name, subject.name, previewed, confirmed)
            afterwards = self.change(case, request)
            row = record(tx, subject.name, self.name, previewed, request)
        return Done(row=row, lines=afterwards())


def refuse_other_effect(action: str, pipeline: str, previewed: ActionPreview, confirmed: ActionPreview | None) -> None:
    """Raise `StalePreviewError` if an action would change other values than the preview that somebody agreed to."""
    if confirmed is not None and (previewed.before, previewed.after) != (confirmed.before, confirmed.after):
        raise StalePreviewError(
            f"{pipeline}: {action} would do something else by now than its preview says, because the state has changed"
            " since. Nothing was changed. Repeat the command, and read the new preview."
        )


def record(tx: Transaction, pipeline: str, action: str, done: ActionPreview, request: Request) -> ActionRow:
    """Write the ledger's row for an action done in the same transaction."""
    row = ActionRow(
        pipeline=pipeline,
        action=action,
        epoch_id=done.epoch_id,
        actor=request.actor.strip(),
        reason=request.reason.strip(),
        before=done.before,
        after=done.after,
    )
    return tx.operators.record(row)


def mirrored(case: Case[Any, Any], line: str, *, known: bool = False) -> Afterwards:
    """Mirror the heads after the change, as `mirror` with ``known``, and say a line."""
    declared, source = case.subject.declaration()

    def show() -> Sequence[str]:
        mirror(case.subject.ledger, source, declared, known=known)
        return [line]

    return show


def refused(reason: str) -> ActionPreview:
    """The preview of an action that would be refused."""
    return ActionPreview(lines=(), before={}, after={}, refusal=reason)


def refuse_older_kafka(ledger: Ledger, source: OffsetSource, pipeline: Pipeline) -> None:
    """Refuse a Kafka that went back in time, as `ConsumerGroup.refuse_older`, and pause the pipeline once."""
    with ledger.transaction() as tx:
        last = tx.receipts.last_mirror(pipeline.name)
    with pausing_where_behind(ledger, pipeline.name), confirmed(source, pipeline):
        ConsumerGroup.observe(source, pipeline, last).refuse_older()
