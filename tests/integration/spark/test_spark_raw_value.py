"""The raw-value program (E2): a fault after the write rolls back what was written with it, and the head stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from epochline import KafkaSource, Settings
from epochline.config.discovery import find
from epochline.coordinator import LEASE, PlanOutcome, abort, begin, commit, plan, seal
from epochline.declare.names import QUARANTINE
from epochline.errors import PipelinePausedError, SealRefusedError
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.spark.credentials import JobCredentials
from epochline.spark.job import run as run_job
from epochline_examples.raw_value import produce

ROOT = Path(__file__).parents[3]
TEN = [str(number) for number in range(1, 11)]
TWENTY = [str(number) for number in range(1, 21)]


class Program:
    """The declared pipeline on a topic of its own, ten records to an epoch, as Airflow's tasks would run it."""

    def __init__(self, spark: Any, database: Any, bootstrap: str, topic: str) -> None:
        declared = find("raw_value", ROOT / "dags")
        source = KafkaSource(topics=topic, records_per_epoch=10)
        # A name of its own: the consumer group of another test's ledger would tell of epochs that this one lacks.
        self.name = f"raw_value.{topic}"
        self.pipeline = declared.model_copy(update={"name": self.name, "source": source})
        self._spark, self._database = spark, database
        self._ledger = PostgresLedger(database.dsn)
        self._source = KafkaOffsets({"bootstrap.servers": bootstrap})
        self._credentials = JobCredentials(dsn=database.dsn, kafka={"bootstrap.servers": bootstrap})
        self._epoch = 0
        database.query((ROOT / "include" / "epochline_examples" / "raw_value.sql").read_text())

    def change(self, **fields: Any) -> None:
        self.pipeline = self.pipeline.model_copy(update=fields)

    def plan(self, run: Run) -> str:
        planned = plan(self._ledger, self._source, self.pipeline, run)
        assert planned.outcome is PlanOutcome.PLANNED
        assert planned.epoch is not None
        self._epoch = planned.epoch.epoch_id
        return ", ".join(str(one.range) for one in planned.ranges)

    def pre_commit(self, run: Run) -> None:
        ticket = begin(self._ledger, self.name, self._epoch, run, lease=LEASE)
        assert ticket is not None
        run_job(self._spark, self.name, self._epoch, ticket.attempt, self._credentials)
        seal(self._ledger, self._source, ticket, run)

    def commit(self) -> None:
        commit(self._ledger, self._source, self.name, self._epoch)

    def abort(self, run: Run) -> None:
        abort(self._ledger, self.name, self._epoch, run, reason="test")

    def resume(self) -> None:
        with self._ledger.transaction() as tx:
            tx.operators.resume(self.name)

    def values(self) -> list[str]:
        found = self._database.query("SELECT value FROM t_test ORDER BY value::int, id")
        return [value for (value,) in found]

    def head(self) -> int:
        return self._database.query("SELECT next_offset FROM epochline.heads")[0][0]

    def staged(self) -> list[tuple[object, ...]]:
        return self._database.query(
            "SELECT attempt, rows_staged FROM epochline.attempts WHERE epoch_id = 2 ORDER BY attempt"
        )


def produce_as(shape: str) -> Callable[..., None]:
    """Twenty numbers written in another shape than the documents' producer gives them."""

    def send(bootstrap: str, *, pause: float, topic: str) -> None:
        with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all")) as producer:
            for number in TWENTY:
                producer.send(topic, (shape % number).encode()).get(30)

    return send


SHAPES = {"object": produce, "bare": produce_as("%s"), "quoted": produce_as('"%s"')}


@pytest.fixture(params=["object"])
def program(request: Any, spark: Any, database: Any, kafka_bootstrap: str, topic_name: str) -> Program:
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    SHAPES[request.param](kafka_bootstrap, pause=0, topic=topic_name)
    one = Program(spark, database, kafka_bootstrap, topic_name)
    first = Run(dag_id="raw_value", run_id="first", host="here")
    assert one.plan(first) == "[0, 10)"
    one.pre_commit(first)
    one.commit()
    assert (one.values(), one.head()) == (TEN, 10)
    return one


SECOND = Run(dag_id="raw_value", run_id="second", host="here")


@pytest.mark.parametrize("program", SHAPES, indirect=True)
def test_a_fault_at_fifteen_rolls_back_what_was_written_with_it_until_it_is_gone(program: Program, database) -> None:
    """E2, X2, X5, K3: 1..10 stay; 11..14 go with 15 at every retry; with the fault off 1..20 are there once each.

    X2: in each shape. The settings are the declared ones: the second plan waits for the minimum pause of a second.
    """
    database.query((ROOT / "include" / "epochline_examples" / "raw_value_fault.sql").read_text())
    assert program.plan(SECOND) == "[10, 20)"

    for attempt in (1, 2, 3):
        with pytest.raises(SealRefusedError, match="for t_test: DivisionByZero"):
            program.pre_commit(SECOND)
        assert program.staged() == [(number, 10) for number in range(1, attempt + 1)]
        assert (program.values(), program.head()) == (TEN, 10)

    database.query("DROP TRIGGER fault_at_15 ON t_test")
    program.pre_commit(SECOND)
    program.commit()

    assert (program.values(), program.head()) == (TWENTY, 20)
    assert database.query("SELECT count(DISTINCT id), count(insert_time), count(DISTINCT insert_time) FROM t_test") == [
        (20, 20, 2)
    ]
    assert database.query(
        "SELECT later.planned_at - earlier.committed_at >= interval '1 second'"
        " FROM epochline.epochs AS earlier JOIN epochline.epochs AS later ON later.epoch_id = 2"
        " WHERE earlier.epoch_id = 1"
    ) == [(True,)]


@pytest.mark.parametrize("parallelism", [1, 4])
def test_fifteen_set_aside_is_quarantined_and_the_other_nineteen_are_there(
    program: Program, database, parallelism: int
) -> None:
    """E2, K22: after an aborted epoch the declaration handles the bad record; the same with one Spark task and four.

    The declared tolerance of 0 has paused the pipeline by then (K11), as it is to: an operator mends it and resumes.
    """
    database.query((ROOT / "include" / "epochline_examples" / "raw_value_fault.sql").read_text())
    program.plan(SECOND)
    with pytest.raises(SealRefusedError):
        program.pre_commit(SECOND)
    program.abort(SECOND)
    program.change(
        parse="pipelines.raw_value:parse_all_but_15",
        bad_records="quarantine",
        settings=Settings(parallelism=parallelism),
    )

    third = Run(dag_id="raw_value", run_id="third", host="here")
    with pytest.raises(PipelinePausedError):
        program.plan(third)
    program.resume()
    assert program.plan(third) == "[10, 20)"
    program.pre_commit(third)
    program.commit()

    assert program.values() == [value for value in TWENTY if value != "15"]
    assert database.query('SELECT "offset", reason FROM epochline.quarantine') == [(14, "15 is set aside")]
    tasks = (
        "SELECT count(*) FROM epochline.part JOIN epochline.attempt USING (attempt_id) WHERE epoch_id = 3 AND sink = %s"
    )
    assert database.query(tasks, (QUARANTINE,)) == [(parallelism,)]
