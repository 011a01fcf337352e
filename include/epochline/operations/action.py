"""What an operator may do: a preview of the effect, then the same effect with a row of the ledger that tells of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from epochline.declare.base import problems
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError, ConfigurationError, EpochNotFoundError
from epochline.ports import ActionRow, Ledger, OffsetSource, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pipeline that is acted on. Without a declaration only what the ledger alone decides can be done."""

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
                f"{self.name}: Kafka has to be asked for this, and no DAG file declares the pipeline, so it is not"
                " known where. Nothing was changed. Bring the declaration back."
            )
        return self.declared, self.source


class Parameters(BaseModel):
    """What an action is told beside pipeline and reason. A field marked ``argument`` stands without its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """What an action would do now, for people (``lines``) and for the ledger (``before``, ``after``: JSON)."""

    lines: Sequence[str]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    epoch_id: int | None = None
    epochs: int = 0
    """How many epochs of its own it would be; 0 for an action that is none."""
    refusal: str | None = None
    """Why it would be refused, with what may be done instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Who wants it, and why. Both are kept in the ledger."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.actor.strip():
            raise ActionRefusedError("an action needs somebody who did it; nothing was changed.")
        if not self.reason.strip():
            raise ActionRefusedError("say why: the reason is kept in the ledger. Nothing was changed.")

    def __str__(self) -> str:
        return f"{self.actor}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done: the row of the ledger, and what to tell."""

    row: ActionRow
    lines: Sequence[str]


Afterwards = Callable[[], Sequence[str]]
"""What is left to do once the change is committed. Repeatable; losing it loses nothing. Gives what to tell."""

P = TypeVar("P", bound=Parameters)
Seen = TypeVar("Seen")


class Action(ABC, Generic[P, Seen]):
    """One thing that an operator may do to a pipeline. ``Seen`` is what it asks Kafka beforehand, or None."""

    name: ClassVar[str]
    help: ClassVar[str]
    parameters: type[P]

    def parse(self, told: Any) -> P:
        """What the action is told, by name.

        Raises:
            ActionRefusedError: it cannot be told this; what was written is not shown, it may come from anybody.
        """
        try:
            return self.parameters.model_validate(told)
        except ValidationError as error:
            # Not chained either: the cause shows its input.
            said = f"{self.name} cannot be told this: {problems(error)}"
        raise ActionRefusedError(f"{said}. Nothing was changed.")

    def look(self, subject: Subject, parameters: P) -> Seen:
        """Ask what no transaction may wait for. By default nothing."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def describe(self, tx: Transaction, subject: Subject, parameters: P, seen: Seen) -> ActionPreview:
        """Say what would happen, from what ``tx`` shows; changes and locks nothing."""

    def admit(self, tx: Transaction, subject: Subject, parameters: P) -> None:
        """Refuse what the ledger does not know.

        Raises:
            EpochNotFoundError: it knows no such pipeline.
        """
        known(tx, subject.name)

    def preview(self, subject: Subject, parameters: P) -> ActionPreview:
        """What `act` would do now.

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
        """Do it, in the transaction that also writes the ledger's row. The pipeline's row is locked."""

    def act(self, subject: Subject, parameters: P, request: Request) -> Done:
        """Do it. What is foreseen under the pipeline's row lock is what is done and written down.

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
    """Write down what was foreseen and done in the same transaction."""
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
    """Refuse a name that the ledger has never seen.

    Raises:
        EpochNotFoundError: it has not.
    """
    if tx.epochs.pipeline(pipeline) is None:
        raise EpochNotFoundError(f"the ledger knows no pipeline {pipeline!r}. Nothing was changed.")


def nothing_else(*lines: str) -> Afterwards:
    """Nothing is left to do; only this is told."""
    return lambda: lines


def refused(reason: str, *, lines: Sequence[str] = ()) -> ActionPreview:
    """A preview of something that would be refused."""
    return ActionPreview(lines=lines, before={}, after={}, refusal=reason)
