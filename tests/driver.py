"""One driver for the epochs of every suite: the product's use cases, called in this process as Airflow's tasks call them.

A subclass says where records come from and how they are staged.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from epochline import Pipeline, coordinator
from epochline.coordinator import LEASE, CommitResult, Plan, PlanPreview, PlanRequest, Published
from epochline.operations import ACTIONS, DirectAction, Done, EpochAction, Request, Subject
from epochline.ports import Ledger
from epochline.protocol.epoch import AbortOutcome, Counts, Epoch, Run
from epochline.protocol.staging import StagingTicket

Who = str | Run
"""The run that takes a step, or its id."""


def epoch_of(planned: Plan) -> Epoch:
    assert planned.epoch is not None
    return planned.epoch


class Driver:
    """A pipeline whose runs are made step by step. Each ``to_…`` method takes all steps up to that state."""

    ledger: Ledger
    source: Any
    pipeline: Pipeline
    lease: timedelta = LEASE
    """How long an attempt belongs to its run."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.pipeline.name

    def create(self) -> Self:
        """Create the targets; gives itself."""
        with self.ledger.transaction() as tx:
            tx.targets.create(self.pipeline)
        return self

    def run_of(self, who: Who) -> Run:
        return who if isinstance(who, Run) else Run(dag_id=self.name, run_id=who, host="here")

    # The tasks of a run.

    def plan(self, who: Who = "run-1", *, sleep: Callable[[float], None] = time.sleep, **options: Any) -> Plan:
        request = PlanRequest(**options)
        return coordinator.plan(self.ledger, self.source, self.pipeline, self.run_of(who), request, sleep=sleep)

    def preview(self, **options: Any) -> PlanPreview:
        """What `epochline plan` shows; it refuses what a run's plan refuses, and changes nothing."""
        return coordinator.preview(self.ledger, self.source, self.pipeline, PlanRequest(**options))

    def begin(self, epoch_id: int, who: Who = "run-1") -> StagingTicket | None:
        return coordinator.begin(self.ledger, self.name, epoch_id, self.run_of(who), lease=self.lease)

    def attempt(self, planned: Plan, who: Who = "run-1") -> StagingTicket:
        """A new attempt at a planned epoch."""
        ticket = self.begin(epoch_of(planned).epoch_id, who)
        assert ticket is not None
        return ticket

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        """Stage every record of an epoch and end the job."""
        raise NotImplementedError

    def seal(self, ticket: StagingTicket, who: Who = "run-1") -> Counts:
        return coordinator.seal(self.ledger, self.source, ticket, self.run_of(who))

    def pre_commit(self, planned: Plan, who: Who = "run-1") -> None:
        """Stage and seal, unless that is done."""
        ticket = self.begin(epoch_of(planned).epoch_id, who)
        if ticket is not None:
            self.stage(planned, ticket)
            self.seal(ticket, who)

    def commit(self, epoch: Plan | int) -> CommitResult:
        epoch_id = epoch if isinstance(epoch, int) else epoch_of(epoch).epoch_id
        return coordinator.commit(self.ledger, self.source, self.name, epoch_id)

    def publish(self) -> Sequence[Published]:
        return coordinator.publish(self.ledger, self.pipeline)

    def abort(
        self, epoch_id: int = 1, who: Who = "run-1", *, reason: str = "a test says so", by_operator: bool = False
    ) -> AbortOutcome:
        run = self.run_of(who)
        return coordinator.abort(self.ledger, self.name, epoch_id, run, reason=reason, by_operator=by_operator)

    # Several tasks.

    def to_planned(self, who: Who = "run-1", **options: Any) -> Plan:
        planned = self.plan(who, **options)
        assert planned.epoch is not None
        return planned

    def to_begun(self, who: Who = "run-1", **options: Any) -> tuple[Plan, StagingTicket]:
        planned = self.plan(who, **options)
        return planned, self.attempt(planned, who)

    def to_staged(self, who: Who = "run-1", **options: Any) -> tuple[Plan, StagingTicket]:
        planned, ticket = self.to_begun(who, **options)
        self.stage(planned, ticket)
        return planned, ticket

    def to_sealed(self, who: Who = "run-1", **options: Any) -> Plan:
        planned = self.to_planned(who, **options)
        self.pre_commit(planned, who)
        return planned

    def to_committed(self, who: Who = "run-1", **options: Any) -> Plan:
        planned = self.to_sealed(who, **options)
        self.commit(planned)
        return planned

    # Operators.

    @property
    def subject(self) -> Subject:
        """The pipeline, as operations take it."""
        return Subject(
            name=self.name, ledger=self.ledger, declared=self.pipeline, source=self.source, parse=_parse_again
        )

    def act(self, name: str, request: Request, /, *, declared: Pipeline | None = None, **asked: Any) -> Done:
        """Do an operation that is no epoch, on this pipeline or on another declaration in its place."""
        action = ACTIONS[name]
        assert isinstance(action, DirectAction)
        subject = self.subject if declared is None else replace(self.subject, name=declared.name, declared=declared)
        return action.act(subject, action.parse(asked), request)

    def order(self, name: str, request: Request, who: Who, /, **asked: Any) -> Plan:
        """The plan of an epoch that an operator orders."""
        action = ACTIONS[name]
        assert isinstance(action, EpochAction)
        return action.plan(self.subject, action.parse(asked), request, self.run_of(who))


def _parse_again(*given: Any) -> Any:
    from epochline.audit.preview import parse_again  # not for every process that takes a step

    return parse_again(*given)
