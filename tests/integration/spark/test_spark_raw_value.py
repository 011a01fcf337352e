"""The raw-value program (E2): a fault after the write rolls back what was written with it, and the head stays."""

from collections.abc import Callable

import pytest

from epochline import KafkaSource, Settings
from epochline.config.discovery import find
from epochline.coordinator import Plan, abort
from epochline.declare.names import QUARANTINE
from epochline.errors import PipelinePausedError, SealRefusedError
from epochline_examples.raw_value import produce
from tests.integration import kafka_topics
from tests.integration.spark.conftest import ROOT, Runs, Servers

EXAMPLES = ROOT / "include" / "epochline_examples"
TEN = [str(number) for number in range(1, 11)]
TWENTY = [str(number) for number in range(1, 21)]


class Program(Runs):
    """The declared pipeline on a topic of its own, ten records to an epoch, as Airflow's tasks would run it."""

    def __init__(self, servers: Servers, topic: str) -> None:
        source = KafkaSource(topics=topic, records_per_epoch=10)
        # A name of its own: the consumer group of another test's ledger would show epochs that this one lacks.
        pipeline = find("raw_value", ROOT / "dags" / "examples").model_copy(
            update={"name": servers.name, "source": source}
        )
        servers.database.query((EXAMPLES / "raw_value.sql").read_text())
        super().__init__(servers, pipeline, create=False)

    def values(self) -> list[str]:
        found = self.database.query("SELECT value FROM examples.t_test ORDER BY value::int, id")
        return [value for (value,) in found]

    def head(self) -> int:
        return int(self.database.query("SELECT next_offset FROM epochline.heads")[0][0])


def shown(planned: Plan) -> list[str]:
    return [str(one.range) for one in planned.ranges]


def produce_as(shape: str) -> Callable[..., None]:
    """Twenty numbers written in another shape than the producer gives them."""

    def send(bootstrap: str, *, pause: float, topic: str) -> None:
        kafka_topics.produce(bootstrap, topic, [(shape % number).encode() for number in TWENTY])

    return send


SHAPES = {"object": produce, "bare": produce_as("%s"), "quoted": produce_as('"%s"')}


@pytest.fixture(params=["object"])
def program(request: pytest.FixtureRequest, servers: Servers, topic_name: str) -> Program:
    """Its first epoch is committed, and the statement that makes the fault has run."""
    kafka_topics.make_topic(servers.bootstrap, topic_name)
    SHAPES[request.param](servers.bootstrap, pause=0, topic=topic_name)
    one = Program(servers, topic_name)
    planned, who = one.planned()
    assert shown(planned) == ["[0, 10)"]
    one.committed(planned, who)
    assert (one.values(), one.head()) == (TEN, 10)
    one.database.query((EXAMPLES / "raw_value_fault.sql").read_text())
    return one


@pytest.mark.parametrize("program", SHAPES, indirect=True)
def test_a_fault_at_fifteen_rolls_back_what_was_written_with_it_until_it_is_gone(program: Program) -> None:
    """E2, X2, K3: 1..10 stay; 11..14 go with 15 at every retry; with the fault off 1..20 are there once each.

    X2: in each shape. The settings are the declared ones: the second plan waits for the minimum pause of a second.
    """
    database = program.database
    planned, who = program.planned()
    assert shown(planned) == ["[10, 20)"]

    attempts = "SELECT attempt, rows_staged FROM epochline.attempts WHERE epoch_id = 2 ORDER BY attempt"
    for attempt in (1, 2, 3):
        with pytest.raises(SealRefusedError, match="for examples.t_test: DivisionByZero"):
            program.sealed(planned, who)
        assert database.query(attempts) == [(number, 10) for number in range(1, attempt + 1)]
        assert (program.values(), program.head()) == (TEN, 10)

    database.query("DROP TRIGGER fault_at_15 ON examples.t_test")
    program.committed(planned, who)

    assert (program.values(), program.head()) == (TWENTY, 20)
    counts = "SELECT count(DISTINCT id), count(insert_time), count(DISTINCT insert_time) FROM examples.t_test"
    assert database.query(counts) == [(20, 20, 2)]
    assert database.query(
        "SELECT later.planned_at - earlier.committed_at >= interval '1 second'"
        " FROM epochline.epochs AS earlier JOIN epochline.epochs AS later ON later.epoch_id = 2"
        " WHERE earlier.epoch_id = 1"
    ) == [(True,)]


@pytest.mark.parametrize("parallelism", [1, 4])
def test_fifteen_set_aside_is_quarantined_and_the_other_nineteen_are_there(program: Program, parallelism: int) -> None:
    """E2, K22: after an aborted epoch the declaration handles the bad record; the same with one Spark task and four.

    The declared tolerance of 0 has paused the pipeline by then (K11), as it is to: an operator mends it and resumes.
    """
    planned, who = program.planned()
    with pytest.raises(SealRefusedError):
        program.sealed(planned, who)
    abort(program.ledger, program.name, 2, who, reason="test")
    changes = {"parse": "all_but_15:parse", "bad_records": "quarantine"}
    settings = Settings(parallelism=parallelism)
    program.pipeline = program.pipeline.model_copy(update={**changes, "settings": settings})

    with pytest.raises(PipelinePausedError):
        program.planned()
    program.resume()
    planned, who = program.planned()
    assert shown(planned) == ["[10, 20)"]
    program.committed(planned, who)

    assert program.values() == [value for value in TWENTY if value != "15"]
    assert program.database.query('SELECT "offset", reason FROM epochline.quarantine') == [(14, "15 is set aside")]
    parts = "epochline.part JOIN epochline.attempt USING (attempt_id)"
    tasks = f"SELECT count(*) FROM {parts} WHERE epoch_id = 3 AND sink = %s"
    assert program.database.query(tasks, QUARANTINE) == [(parallelism,)]
