"""Look-ups as a pipeline (E9): declared as shipped, with records of Kafka and cities in PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from psycopg2.extensions import parse_dsn

from epochline import KafkaSource
from epochline.cli.examples import _Run
from epochline.config.discovery import find
from epochline.errors import LookupUnavailableError
from epochline.local.credentials import JOB
from epochline.local.stack import Stack
from epochline_examples.programs import PROGRAMS
from epochline_examples.steps import Look
from pipelines import city_lookup
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import Topic, produce
from tests.integration.sinks_world import in_process

ROOT = Path(__file__).parents[2]
Patch = pytest.MonkeyPatch
IDS = [b"%d" % number for number in range(1, 10)]


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> Topic:
    return Topic(kafka_bootstrap, topic_name).make()


@pytest.fixture
def program(postgres_dsn: str, kafka_bootstrap: str, topic: Topic, tmp_path: Path, monkeypatch: Patch) -> InProcess:
    """The shipped declaration, reading a topic of the test's own."""
    services = tmp_path / "pg_service.conf"
    settings = "".join(f"{key}={value}\n" for key, value in parse_dsn(postgres_dsn).items())
    services.write_text(f"[{city_lookup.SERVICE}]\n{settings}")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    declared = find("city_lookup", ROOT / "dags")
    pipeline = declared.model_copy(update={"name": f"city.{topic}", "source": KafkaSource(topics=topic.name)})
    one = in_process(postgres_dsn, kafka_bootstrap, pipeline)
    one.create()
    one.sql((ROOT / "include" / "epochline_examples" / "city_lookup.sql").read_text())
    return one


def test_each_id_gets_its_city_and_what_is_no_id_is_set_aside(program: InProcess, topic: Topic) -> None:
    """E9: 1>>>beijing … 9>>>chongqing; an id without a city has none."""
    produce(topic.servers, topic.name, [*IDS, b"10", b"one", b"\xff"])

    program.epoch()

    look = PROGRAMS["city_lookup"].result
    assert isinstance(look, Look)
    assert tuple(program.sql(look.query.replace("city_of_id", "city_of_id WHERE city IS NOT NULL"))) == look.expected
    assert program.sql("SELECT id FROM city_of_id WHERE city IS NULL") == [("10",)]
    reason = "is not a number of up to 18 digits"
    assert program.sql('SELECT "offset", reason FROM epochline.quarantine ORDER BY 1') == [(10, reason), (11, reason)]


def test_a_look_up_that_takes_too_long_sets_one_record_aside_and_the_epoch_commits(
    program: InProcess, topic: Topic
) -> None:
    """E9b: the city of 5 takes longer than the declared second; the other eight arrive."""
    program.sql(
        "ALTER TABLE city RENAME TO cities; CREATE VIEW city AS SELECT id, name FROM cities"
        " WHERE CASE id WHEN '5' THEN pg_sleep(60) IS NOT NULL ELSE true END"
    )
    produce(topic.servers, topic.name, IDS)

    program.epoch()

    assert program.sql("SELECT string_agg(id, '' ORDER BY id), count(city) FROM city_of_id") == [("12346789", 8)]
    reason = "the look-up of city timed out after 1 s"
    assert program.sql('SELECT "offset", reason FROM epochline.quarantine') == [(4, reason)]


def test_an_epoch_whose_cities_cannot_be_reached_fails_retryably_and_sets_nothing_aside(
    program: InProcess, topic: Topic, monkeypatch: Patch
) -> None:
    """INV-9: no record is to blame for a store that is down, or for a service that nobody named."""
    produce(topic.servers, topic.name, [b"1"])
    planned, run = program.planned()
    ticket = program.begun(planned, run)
    monkeypatch.setenv("PGSERVICEFILE", str(ROOT / "nowhere"))

    with pytest.raises(LookupUnavailableError) as caught:
        program.stage(planned, ticket)

    assert caught.value.retryable


def test_the_program_of_the_command_line_finds_its_cities_with_the_login_of_jobs(
    stack: Stack, kafka_bootstrap: str, monkeypatch: Patch
) -> None:
    """SEC-2: the password is in one file that its owner alone reads; the login may read the cities, and no more."""
    monkeypatch.setenv("EPOCHLINE_HOME", str(stack.home.root))
    run = _Run(PROGRAMS["city_lookup"])
    run._prepare()
    services = run._environment()["PGSERVICEFILE"]
    monkeypatch.setenv("PGSERVICEFILE", services)

    parsed = city_lookup.parse(pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"9"], pa.binary())}))

    assert parsed.column("city").to_pylist() == ["beijing", "chongqing"]
    assert Path(services).stat().st_mode & 0o777 == 0o600
    with closing(city_lookup._connect()) as session, session.cursor() as cursor:
        cursor.execute("SELECT session_user, has_table_privilege('city', 'INSERT, UPDATE, DELETE')")
        assert cursor.fetchone() == (JOB, False)
