"""Look-ups as a pipeline (E9): declared as shipped, with records of Kafka and cities in Redis."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from epochline import KafkaSource
from epochline.config.discovery import find
from epochline_examples.programs import PROGRAMS, Look
from epochline_examples.redis_server import CITIES, HASH, redis_server
from pipelines import city_lookup
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import Topic, produce
from tests.integration.people import Patch
from tests.integration.sinks_world import in_process

ROOT = Path(__file__).parents[2]
IDS = [one.encode() for one in CITIES]
LINES = [f"{one}>>>{city}" for one, city in CITIES.items()]


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> Topic:
    return Topic(kafka_bootstrap, topic_name).make()


@pytest.fixture
def url(monkeypatch: Patch) -> Iterator[str]:
    with redis_server() as one:
        monkeypatch.setenv("REDIS_URL", one)
        yield one


@pytest.fixture
def program(url: str, postgres_dsn: str, kafka_bootstrap: str, topic: Topic) -> InProcess:
    """The shipped declaration, reading a topic of the test's own."""
    declared = find("city_lookup", ROOT / "dags" / "examples")
    pipeline = declared.model_copy(update={"name": f"city.{topic}", "source": KafkaSource(topics=topic.name)})
    return in_process(postgres_dsn, kafka_bootstrap, pipeline).create()


def test_each_id_gets_its_city_and_what_is_no_id_is_set_aside(program: InProcess, topic: Topic) -> None:
    """E9: 1>>>beijing … 9>>>chongqing; an id without a city has none."""
    produce(topic.servers, topic.name, [*IDS, b"10", b"one", b"\xff"])

    program.epoch()

    shipped = PROGRAMS["city_lookup"]
    look = shipped.result
    assert isinstance(look, Look)
    assert [line for (line,) in look.rows] == LINES
    assert tuple(program.sql(shipped.query.replace("city_of_id", "city_of_id WHERE line IS NOT NULL"))) == look.rows
    assert program.sql("SELECT id FROM examples.city_of_id WHERE line IS NULL") == [("10",)]
    reason = "is not a number of up to 18 digits"
    assert program.sql('SELECT "offset", reason FROM epochline.quarantine ORDER BY 1') == [(10, reason), (11, reason)]


def test_a_look_up_that_takes_too_long_sets_one_record_aside_and_the_epoch_commits(
    program: InProcess, topic: Topic, monkeypatch: Patch
) -> None:
    """E9b: the look-up of 5 waits at the server for longer than the declared second; the other eight lines arrive."""
    # The shipped functions are asked; one key is made slow where it is sent to the server.
    quick = city_lookup.LINES._fetch

    async def slow(client: redis.asyncio.Redis, key: str) -> str | None:
        if key == "5":
            await client.blpop(["gate"], timeout=60)
        return await quick(client, key)

    monkeypatch.setitem(city_lookup.LINES._arguments, "fetch", slow)
    produce(topic.servers, topic.name, IDS)

    program.epoch()

    lines = [line for (line,) in program.sql("SELECT line FROM examples.city_of_id ORDER BY id")]
    assert lines == [line for line in LINES if not line.startswith("5")]
    reason = "the look-up of line timed out after 1 s"
    assert program.sql('SELECT "offset", reason FROM epochline.quarantine') == [(4, reason)]


def test_the_redis_of_the_program_holds_the_cities_and_ends_with_it() -> None:
    with redis_server() as url, closing(redis.Redis.from_url(url, decode_responses=True)) as client:
        assert client.hgetall(HASH) == CITIES

    with closing(redis.Redis.from_url(url)) as client, pytest.raises(redis.ConnectionError):
        client.ping()
