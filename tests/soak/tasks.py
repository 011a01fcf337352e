"""One task of an epoch in this process, as Airflow's operators run it, with the rows written by the product's writer.

Spark's place is taken by a Kafka consumer: it costs seconds per epoch, and a soak wants many epochs. Everything else is
the product: use cases, ledger, staging writer, parse and encoding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from epochline.coordinator import PlanOutcome
from epochline.declare.pipeline import Pipeline
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Interval, Run
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.spark.part_rows import one_pass_writer
from tests.driver import Driver
from tests.job import write_as_spark
from tests.reading import read_range

# Short, so that runs take over from dead ones while the soak lasts.
LEASE = timedelta(seconds=6)
_READ_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the soak's PostgreSQL and Kafka are."""

    dsn: str
    bootstrap: str


class Tasks(Driver):
    lease = LEASE

    def __init__(self, pipeline: Pipeline, run_id: str, servers: Servers, enter: Callable[[str], None]) -> None:
        self.pipeline, self._servers, self._enter = pipeline, servers, enter
        self._run = Run(dag_id=pipeline.name, run_id=run_id, host="soak")
        kafka = {"bootstrap.servers": servers.bootstrap}
        self.ledger = PostgresLedger(servers.dsn, lock_timeout=5, sink_factory=sinks_by(lambda _: kafka))
        self.source = KafkaOffsets(kafka)

    def take_plan(self, interval: Interval | None) -> int | None:
        """The id of the run's epoch, None where there is nothing to read."""
        self._enter("plan")
        planned = self.plan(self._run, lease=LEASE, interval=interval)
        if planned.epoch is None or planned.outcome is PlanOutcome.NOTHING_TO_READ:
            return None
        return planned.epoch.epoch_id

    def take_pre_commit(self, epoch_id: int) -> None:
        """Stage and seal, unless that is done."""
        self._enter("begin")
        ticket = self.begin(epoch_id, self._run)
        if ticket is None:
            return
        self._enter("stage")
        self._stage(ticket)
        self._enter("seal")
        self.seal(ticket, self._run)

    def take_commit(self, epoch_id: int) -> None:
        self._enter("commit")
        self.commit(epoch_id)

    def take_publish(self) -> None:
        """Publish every committed epoch, including other runs' epochs."""
        self._enter("publish")
        self.publish()

    def take_abort(self, epoch_id: int) -> None:
        self._enter("abort")
        self.abort(epoch_id, self._run, reason="the soak's run failed")

    def _stage(self, ticket: StagingTicket) -> None:
        work = read_plan(self._servers.dsn, ticket.pipeline, ticket.epoch_id, ticket.attempt)
        writer = one_pass_writer(work.pipeline.spec, work.ticket, self._servers.dsn)
        reads = (read_range(self._servers.bootstrap, one, batch=500, patience=_READ_SECONDS) for one in work.ranges)
        write_as_spark(writer, [chain.from_iterable(reads)])
