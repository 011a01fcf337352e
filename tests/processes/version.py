"""A process of one version of epochline: it takes the steps that a test names, a line of JSON each, and answers a line.

It runs in the environment of that version, so it imports nothing of the tests, and only what all these versions have.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from epochline import coordinator
from epochline.cli.connections import adapters
from epochline.cli.execution import start_spark
from epochline.config.discovery import find
from epochline.failpoints import arm, known_failpoints
from epochline.operations.janitor import tidy
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.migrate import upgrade
from epochline.protocol.epoch import Run
from epochline.protocol.staging import StagingTicket
from epochline.spark import job
from epochline.spark.part_rows import one_pass_writer
from epochline.spark.source import read_ranges
from epochline.spark.stage_frames import Made
from epochline.spark.staging import write_manifests

_end: Callable[..., None] = getattr(job, "end", None) or job._end  # type: ignore[attr-defined]  # before 0.3.0


class _Conf:
    """What `read_ranges` asks of a session of Spark: how many records a batch has."""

    @property
    def conf(self) -> "_Conf":
        return self

    def get(self, _name: str) -> str:
        return "4"


class Steps:
    """One method per step. The tickets of attempts stay in the process, as in the task that began them."""

    def __init__(self) -> None:
        self.tickets: dict[tuple[str, int], StagingTicket] = {}
        self.open = ExitStack()
        self.spark: Any = None

    def use(self, pipeline: str, run: str, failpoint: str = "", **variables: str) -> None:
        os.environ.update(variables)
        arm({**os.environ, "EPOCHLINE_FAILPOINT": failpoint} if failpoint else {})
        self.declared = find(pipeline)
        self.name, self.run = pipeline, Run(dag_id=pipeline, run_id=run, host="here")
        self.ledger, self.source = adapters().ledger(self.declared), adapters().offsets(self.declared)

    def failpoints(self) -> list[str]:
        return sorted(known_failpoints())

    def migrate(self) -> str:
        return upgrade(adapters().postgres_dsn(self.declared.postgres_connection))

    def create(self) -> None:
        with self.ledger.transaction() as tx:
            tx.targets.create(self.declared)

    def plan(self) -> int | None:
        epoch = coordinator.plan(self.ledger, self.source, self.declared, self.run, coordinator.PlanRequest()).epoch
        return None if epoch is None else epoch.epoch_id

    def begin(self, epoch: int) -> int | None:
        ticket = coordinator.begin(self.ledger, self.name, epoch, self.run, lease=coordinator.LEASE)
        if ticket is None:
            return None
        self.tickets[self.name, epoch] = ticket
        return ticket.attempt

    def stage(self, epoch: int, attempt: int) -> None:
        """What the Spark job does, without Spark."""
        credentials = self._credentials()
        plan = read_plan(credentials.dsn, self.name, epoch, attempt)
        search = plan.pipeline.commit_statement_timeout
        writer = one_pass_writer(plan.pipeline.spec, plan.ticket, credentials.dsn, search=search)
        records: Any = read_ranges(_Conf(), plan.ranges, credentials.kafka, 1)  # type: ignore[arg-type]
        write_manifests([writer], [writer.write(records.reader.read(0))])
        _end(plan.ticket, credentials.dsn, Made())

    def submit(self, epoch: int, attempt: int, python: str) -> None:
        """The Spark job itself; ``python`` is the interpreter of its workers."""
        if self.spark is None:
            self.spark = start_spark(self.open, self.declared, "local[1]")
        self.spark.sparkContext.pythonExec = python
        job.run(self.spark, self.name, epoch, attempt, self._credentials())

    def _credentials(self) -> Any:
        return adapters().job_credentials(self.declared, None)  # type: ignore[arg-type]  # only a writer needs a ticket

    def seal(self, epoch: int) -> int:
        return coordinator.seal(self.ledger, self.source, self.tickets[self.name, epoch], self.run).read

    def commit(self, epoch: int) -> str:
        return str(coordinator.commit(self.ledger, self.source, self.name, epoch).outcome)

    def publish(self) -> list[str]:
        return [shown.sink for shown in coordinator.publish(self.ledger, self.declared)]

    def announce(self) -> int:
        return len(coordinator.announce(self.ledger, self.name, self.run, acknowledged=lambda receipts: receipts))

    def abort(self, epoch: int) -> str:
        return str(coordinator.abort(self.ledger, self.name, epoch, self.run, reason="a test says so"))

    def tidy(self) -> None:
        tidy(self.ledger, self.run)


def answer(steps: Steps, step: str, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"did": getattr(steps, step)(**given)}
    except Exception as error:
        return {"error": type(error).__name__, "said": str(error)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a step prints is no answer
    steps = Steps()
    with steps.open:
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(answer(steps, asked.pop("step"), asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
