"""Look-ups many at a time, in a real Redis and a real PostgreSQL: order, limits, time-outs, connections (E9, E9b).

What both kinds promise, threads and one asynchronous client, is tested of both: a fetch is written once as a coroutine,
which the threads run to its end with a client that answers at once.
"""

import gc
import itertools
import pickle
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import isawaitable
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
import redis
import redis.asyncio

from epochline.errors import ConfigurationError, DeclarationError, LookupUnavailableError
from epochline.lookup import AsyncLookup, Lookup, Outcome, PoolLimits, over_batches
from epochline.lookup.pool import Pool
from epochline_examples.redis_server import redis_server
from tests.databases import query
from tests.waiting import wait_until

HASH = "AsyncReadRedis"
IDS = [str(number) for number in range(1, 10)]
CITIES = ["beijing", "shanghai", "guangzhou", "shenzhen", "hangzhou", "wuhan", "chengdu", "tianjin", "chongqing"]
LINES = [f"{one}>>>{city}" for one, city in zip(IDS, CITIES, strict=True)]
LONG, SHORT = timedelta(seconds=60), timedelta(seconds=2)
PATIENCE = 60.0
AnyLookup = Lookup[Any, Any, Any] | AsyncLookup[Any, Any, Any]

Client = Any
Fetch = Callable[[Client, Any], Coroutine[Any, Any, Any]]
Session = psycopg2.extensions.connection


async def answer(given: Any) -> Any:
    """What a command of either client gives."""
    return await given if isawaitable(given) else given


async def city(client: Client, key: str) -> Any:
    return await answer(client.hget(HASH, key))


async def waiting_city(client: Client, key: str) -> Any:
    """The city, as soon as somebody opens the gate for one."""
    await answer(client.blpop("gate", timeout=PATIENCE))
    return await city(client, key)


async def city_after_all_others(client: Client, key: str) -> Any:
    """The city; that of the first key when the other eight have been answered."""
    if key == "1":
        return await waiting_city(client, key)
    if await answer(client.incr("answered")) == 8:
        await answer(client.rpush("gate", "open"))
    return await city(client, key)


@dataclass(frozen=True)
class AtOnce:
    """A fetch for threads: the coroutine waits for nothing but the client, which blocks."""

    fetch: Fetch

    def __call__(self, client: Client, key: Any) -> Any:
        try:
            self.fetch(client, key).send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the coroutine waits")


@dataclass(frozen=True)
class Redis:
    socket: str

    # A client's own time-out is shorter than a gate may stay closed on a busy machine.
    def connect(self) -> Client:
        return redis.Redis(
            unix_socket_path=self.socket, single_connection_client=True, decode_responses=True, socket_timeout=2 * PATIENCE
        )  # fmt: skip

    def connect_async(self) -> Client:
        return redis.asyncio.Redis(unix_socket_path=self.socket, decode_responses=True, socket_timeout=2 * PATIENCE)

    @property
    def in_flight(self) -> int:
        """Number of look-ups that wait inside the server."""
        with closing(self.connect()) as client:
            return int(client.info("clients")["blocked_clients"])

    @property
    def clients(self) -> int:
        with closing(self.connect()) as client:
            return int(client.info("clients")["connected_clients"]) - 1

    def wait_until_in_flight(self, look_ups: int) -> None:
        wait_until(lambda: self.in_flight == look_ups)

    def open_gate(self, times: int) -> None:
        with closing(self.connect()) as client:
            client.rpush("gate", *["open"] * times)


@pytest.fixture(scope="module")
def redis_at() -> Iterator[Redis]:
    with redis_server({}) as url:
        yield Redis(url.removeprefix("unix://"))


@pytest.fixture
def store(redis_at: Redis) -> Iterator[Redis]:
    with closing(redis_at.connect()) as client:
        client.flushall()
        client.hset(HASH, mapping=dict(zip(IDS, CITIES, strict=True)))
    yield redis_at
    # An asynchronous look-up that is collected while the loop of another one runs cannot close its client.
    gc.collect()


def in_threads(store: Redis, fetch: Fetch = city, **options: Any) -> AnyLookup:
    given: dict[str, Any] = {"concurrency": 9, "timeout": LONG, **options}
    return Lookup(AtOnce(fetch), connect=store.connect, close=redis.Redis.close, **given)


def in_one_thread(store: Redis, fetch: Fetch = city, **options: Any) -> AnyLookup:
    given: dict[str, Any] = {"concurrency": 9, "timeout": LONG, "unavailable": (redis.ConnectionError,), **options}
    return AsyncLookup(fetch, connect=store.connect_async, close=redis.asyncio.Redis.aclose, **given)


Kind = Callable[..., AnyLookup]
"""Makes a look-up in a Redis; the options are those of `Lookup` and `AsyncLookup`."""

KINDS: list[Kind] = [in_threads, in_one_thread]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["threads", "async"])
each_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])


class Postgres:
    """Cities in a table, and what the server knows of those who look there."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.query("CREATE TABLE city (id text PRIMARY KEY, name text NOT NULL)")
        self.query("INSERT INTO city SELECT * FROM unnest(%s, %s)", IDS, CITIES)

    def connect(self) -> Session:
        connection = psycopg2.connect(self.dsn, application_name="lookup")
        connection.autocommit = True
        return connection

    def city(self, connection: Session, key: str) -> str | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM city WHERE id = %s", (key,))
            found = cursor.fetchone()
        return None if found is None else str(found[0])

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement, *values)

    @property
    def sessions(self) -> list[int]:
        of_lookups = "application_name = 'lookup' AND datname = current_database()"
        return [pid for (pid,) in self.query(f"SELECT pid FROM pg_stat_activity WHERE {of_lookups}")]

    def backend(self, connection: Session, _: object) -> int:
        """Which session it is that looks the key up."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [(pid,)] = cursor.fetchall()
        return int(pid)


@pytest.fixture
def postgres(postgres_dsn: str) -> Postgres:
    return Postgres(postgres_dsn)


def in_postgres(postgres: Postgres, fetch: Callable[[Session, Any], Any], **options: Any) -> AnyLookup:
    given: dict[str, Any] = {"concurrency": 1, "timeout": LONG, **options}
    return Lookup(fetch, connect=postgres.connect, close=Session.close, **given)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Run something during the block; an error in it fails the test."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
    done.result()


@contextmanager
def hanging(*keys: str) -> Iterator[Fetch]:
    """Looks cities up; the threads that look these keys up hang until the end of the block."""
    end = threading.Event()

    async def fetch(client: Client, key: str) -> Any:
        if key in keys:
            end.wait()
        return await city(client, key)

    try:
        yield fetch
    finally:
        end.set()


def lines(asking: AnyLookup) -> list[str]:
    return [f"{one.key}>>>{one.value}" for one in asking.each(IDS)]


@each_kind
@each_order
def test_answers_are_complete_here_and_on_an_executor(store: Redis, kind: Kind, ordered: bool) -> None:
    """E9: nine ids, nine lines; a second round uses the clients of the first."""
    asking = kind(store, ordered=ordered)
    assert sorted(lines(asking)) == LINES

    there = pickle.loads(pickle.dumps(asking))  # noqa: S301 - what this process has made

    for _ in range(2):
        assert sorted(lines(there)) == LINES


@each_kind
def test_ordered_answers_come_in_the_order_of_the_keys_however_late_the_first_is(store: Redis, kind: Kind) -> None:
    """E9, E9b, X18: the first look-up ends last, when the others have been answered."""
    assert lines(kind(store, city_after_all_others)) == LINES


@each_kind
def test_unordered_answers_do_not_wait_for_an_earlier_key(store: Redis, kind: Kind) -> None:
    """E9b, X18: the key that comes first is answered last, because only then its gate is opened."""

    async def fetch(client: Client, key: str) -> Any:
        return await (waiting_city if key == "1" else city)(client, key)

    found: list[str] = []

    for answered in kind(store, fetch, ordered=False).each(IDS):
        found.append(answered.key)
        if len(found) == 8:
            store.open_gate(1)

    assert found[-1] == "1"
    assert sorted(found) == IDS


@each_kind
def test_nine_look_ups_wait_at_the_server_at_the_same_time(store: Redis, kind: Kind) -> None:
    """E9, E9b, X17: none is answered before the server holds all nine, which look-ups one by one would never reach.

    A client that is asynchronous needs no threads.
    """
    threads: set[int] = set()

    async def fetch(client: Client, key: str) -> Any:
        threads.add(threading.get_ident())
        return await waiting_city(client, key)

    def release() -> None:
        store.wait_until_in_flight(9)
        store.open_gate(9)

    with meanwhile(release):
        found = list(kind(store, fetch).each(IDS))

    assert [one.value for one in found] == CITIES
    assert (threads == {threading.get_ident()}) == (kind is in_one_thread)


@each_kind
def test_no_more_look_ups_are_in_flight_than_declared(store: Redis, kind: Kind) -> None:
    """E9: the server counts those that have begun and not ended; three are, and never four."""

    async def fetch(client: Client, key: str) -> int:
        in_flight = int(await answer(client.incr("in flight")))
        await answer(client.blpop("gate", timeout=PATIENCE))
        await answer(client.decr("in flight"))
        return in_flight

    def release() -> None:
        for left in range(9, 0, -1):
            store.wait_until_in_flight(min(3, left))
            store.open_gate(1)

    with meanwhile(release):
        found = [one.value or 0 for one in kind(store, fetch, concurrency=3, ordered=False).each(IDS)]

    assert max(found) == 3


@each_kind
@pytest.mark.parametrize(("ordered", "given"), [(True, None), (False, "no city")], ids=["ordered", "unordered"])
def test_an_endless_look_up_is_settled_at_its_deadline(
    store: Redis, kind: Kind, ordered: bool, given: str | None
) -> None:
    """E9b, X17: the handler is called once, eight rows have their city, the round ends although the thread does not.

    What the handler gives stands for the value, so that a row that times out can be completed.
    """
    late: list[str] = []

    async def waits(client: Client, key: str) -> Any:
        return await (waiting_city if key == "5" else city)(client, key)

    def handle(key: str) -> str | None:
        late.append(key)
        return given

    with hanging("5") as hangs:
        fetch = hangs if kind is in_threads else waits
        asking = kind(store, fetch, timeout=SHORT, ordered=ordered, on_timeout=handle)
        found = {one.key: one for one in asking.each(IDS)}

    assert late == ["5"]
    assert (found["5"].outcome, found["5"].value) == (Outcome.TIMED_OUT, given)
    assert [found[key].value for key in IDS if key != "5"] == [city for city in CITIES if city != "hangzhou"]
    store.wait_until_in_flight(0)


def test_look_ups_go_on_where_every_thread_there_may_be_hangs(store: Redis) -> None:
    """E9b: two at once and both hang for ever; the other seven are looked up all the same, on other connections."""
    with hanging("1", "2") as fetch:
        found = list(in_threads(store, fetch, concurrency=2, timeout=SHORT).each(IDS))

    assert [one.outcome for one in found] == [Outcome.TIMED_OUT] * 2 + [Outcome.ANSWERED] * 7


def test_a_connection_that_is_still_busy_at_the_deadline_is_closed_and_never_used_again(postgres: Postgres) -> None:
    """E9b: the late answer belongs to nobody, and the next look-up has another session."""
    gate = threading.Event()
    late: list[int] = []

    def fetch(connection: Session, key: str) -> int:
        backend = postgres.backend(connection, key)
        if key == "late":
            late.append(backend)
            gate.wait()
        return backend

    asking = in_postgres(postgres, fetch, timeout=SHORT)
    (answer,) = asking.each(["late"])
    assert answer.outcome is Outcome.TIMED_OUT
    assert postgres.sessions == late, "it is still busy"

    gate.set()
    wait_until(lambda: not postgres.sessions)
    (answer,) = asking.each(["next"])
    assert answer.value not in late


def test_a_look_up_past_its_deadline_is_cancelled_at_the_server(postgres: Postgres) -> None:
    """E9b: one connection in all, busy for a quarter of an hour; cancelled, it makes room for the next."""

    def fetch(connection: Session, seconds: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", (seconds,))
        return seconds

    limits = {"timeout": timedelta(seconds=5), "pool": PoolLimits(max_total=1)}
    asking = in_postgres(postgres, fetch, cancel=lambda one: one.cancel(), **limits)
    found = [one.outcome for one in asking.each([900, 0])]

    assert found == [Outcome.TIMED_OUT, Outcome.ANSWERED]


def test_the_pool_opens_no_more_connections_than_it_may_and_uses_the_last_one_first(postgres: Postgres) -> None:
    """E9, X17: nine look-ups at once share two sessions; one after another, they share the one that was used last."""
    asking = in_postgres(postgres, postgres.backend, concurrency=9, pool=PoolLimits(max_total=2))

    at_once = {one.value for one in asking.each(range(200))}
    assert len(at_once) <= 2
    assert set(postgres.sessions) == at_once

    assert len({next(asking.each([number])).value for number in range(5)}) == 1


def test_connections_that_nobody_needs_are_closed(postgres: Postgres) -> None:
    """E9: more idle ones than may be, idle ones of half an hour, and all at the end."""
    clock = [0.0]
    pool = Pool(postgres.connect, Session.close, PoolLimits(max_idle=2), now=lambda: clock[0])
    taken = [pool.take(1)[0] for _ in range(3)]

    assert [pool.give(one) for one in taken] == [True, True, False]
    pool.drop(taken[2])
    wait_until(lambda: len(postgres.sessions) == 2)

    clock[0] = timedelta(minutes=31).total_seconds()
    fresh, used = pool.take(clock[0] + 1)
    assert not used
    wait_until(lambda: len(postgres.sessions) == 1)

    pool.close()
    assert not pool.give(fresh)
    pool.drop(fresh)
    wait_until(lambda: not postgres.sessions)


@each_kind
def test_the_connection_is_closed_when_the_lookup_is_let_go(store: Redis, kind: Kind) -> None:
    """X17: every task brings new functions; the connections of earlier ones are closed and do not add up."""
    asking = kind(store)
    assert [one.value for one in asking.each(["1"])] == ["beijing"]
    assert store.clients == 1

    del asking
    gc.collect()

    wait_until(lambda: store.clients == 0)


def test_who_waits_longer_for_a_connection_than_the_pool_allows_has_failed(store: Redis) -> None:
    """E9: the document's pool has a longest wait; the one that has the only connection is answered later."""
    limits = PoolLimits(max_total=1, max_wait=timedelta(milliseconds=50))
    asking = in_threads(store, waiting_city, concurrency=2, pool=limits, ordered=False)
    found = []

    for answer in asking.each(["1", "2"]):
        found.append((answer.outcome, type(answer.error).__name__))
        if len(found) == 1:
            store.open_gate(1)

    assert found == [(Outcome.FAILED, "PoolExhaustedError"), (Outcome.ANSWERED, "NoneType")]


def test_a_connection_that_broke_while_it_was_idle_is_replaced(postgres: Postgres) -> None:
    """X17: the server ended the session between two batches; no row learns of it."""
    asking = in_postgres(postgres, postgres.city)
    assert [one.value for one in asking.each(["1"])] == ["beijing"]
    broken = postgres.sessions

    postgres.query("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", broken)
    assert [one.value for one in asking.each(IDS)] == CITIES

    wait_until(lambda: len(postgres.sessions) == 1)  # the server takes a moment to forget the one that it ended
    assert postgres.sessions != broken


@each_kind
def test_an_error_of_one_look_up_is_that_row_s_alone(store: Redis, kind: Kind) -> None:
    """E9b: a key that the store refuses, in the midst of others."""

    async def fetch(client: Client, key: str) -> Any:
        return await (answer(client.lpop(HASH)) if key == "4" else city(client, key))

    found = list(kind(store, fetch).each(IDS))

    assert isinstance(found[3].error, redis.ResponseError)
    assert [one.value for one in found] == [city if city != "shenzhen" else None for city in CITIES]
    assert [one.outcome for one in found].count(Outcome.FAILED) == 1


def failing(kind: str, connect: Callable[[], Any]) -> AnyLookup:
    options: dict[str, Any] = {"connect": connect, "close": print, "concurrency": 1, "timeout": LONG}
    return Lookup(city, **options) if kind == "threads" else AsyncLookup(city, unavailable=(OSError,), **options)


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_store_that_cannot_be_reached_fails_the_attempt_and_no_record(kind: str) -> None:
    """INV-9: otherwise a stopped store would have every record of an epoch set aside. No word of what was tried."""

    def connect() -> Any:
        raise ConnectionRefusedError("canary")

    enrich = over_batches(failing(kind, connect), key="id", column="city", kind=pa.string())

    with pytest.raises(LookupUnavailableError, match="no connection could be opened") as caught:
        enrich(batch_of(["1"]))

    assert caught.value.retryable
    assert "canary" not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_what_connect_says_of_a_wrong_configuration_is_passed_on(kind: str) -> None:
    def connect() -> Any:
        raise ConfigurationError("PGSERVICEFILE is not set")

    with pytest.raises(ConfigurationError, match="PGSERVICEFILE"):
        list(failing(kind, connect).each(["1"]))


@each_order
def test_keys_are_taken_as_there_is_room_and_a_listener_that_stops_leaves_no_thread(
    store: Redis, ordered: bool
) -> None:
    """E9b: keys without end; those that are answered and wait for an earlier one take room too."""
    keys = itertools.count()

    async def fetch(_: Client, key: int) -> int:
        return key

    found = in_threads(store, fetch, concurrency=3, ordered=ordered).each(keys)
    assert isinstance(found, Generator)

    with closing(found):
        assert next(found).value in (0, 1, 2)

    assert next(keys) == 3
    wait_until(lambda: all(one.name != "epochline-lookup" for one in threading.enumerate()))


@each_order
def test_what_waits_at_the_server_is_given_up_by_who_stops_listening(store: Redis, ordered: bool) -> None:
    """E9b: keys without end, by an asynchronous client."""
    keys = itertools.count()

    async def fetch(client: Client, key: int) -> int:
        if key:
            await answer(client.blpop("gate", timeout=PATIENCE))
        return key

    found: Any = in_one_thread(store, fetch, concurrency=3, ordered=ordered).each(keys)
    with closing(found):
        assert next(found).value == 0

    assert next(keys) == 3
    store.wait_until_in_flight(0)


@each_order
@each_kind
def test_a_batch_keeps_its_rows_in_order_and_says_what_became_of_each(store: Redis, kind: Kind, ordered: bool) -> None:
    """E9b: a time-out, a failure, an unknown key, a bad row, a skipped one and one without a key in one batch."""

    async def fetch(client: Client, key: str) -> Any:
        if key == "late":
            await answer(client.blpop("gate", timeout=PATIENCE))
        if key == "refused":
            await answer(client.lpop(HASH))
        return 7 if key == "number" else await city(client, key)

    asking = kind(store, fetch, timeout=SHORT, ordered=ordered)
    enrich = over_batches(asking, key="id", column="city", kind=pa.string())
    ids = ["1", "late", "refused", "unknown", "bad", "2", None, "number", "9"]
    errors, skips = ["is no id" if one == "bad" else None for one in ids], [one == "2" for one in ids]
    given = pa.RecordBatch.from_pydict({"id": ids, "_error": errors, "_skip": skips})

    found = enrich(given)

    assert found.column("city").to_pylist() == ["beijing", None, None, None, None, None, None, None, "chongqing"]
    assert found.column("_error").to_pylist() == [
        None, "the look-up of city timed out after 2 s", "the look-up of city failed (ResponseError)", None,
        "is no id", None, None, "the look-up of city found a value of type int, not string", None,
    ]  # fmt: skip
    assert found.column("id").equals(given.column("id"))
    assert found.column("_skip").equals(given.column("_skip"))
    store.open_gate(1)


@each_kind
def test_a_batch_without_rows_opens_nothing(tmp_path: Path, kind: Kind) -> None:
    enrich = over_batches(kind(Redis(str(tmp_path / "nowhere"))), key="id", column="city", kind=pa.string())

    assert enrich(batch_of([])).schema.names == ["id", "city", "_error"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("Lookup.concurrency", 0), ("AsyncLookup.concurrency", 0), ("Lookup.timeout", timedelta(0)),
        ("AsyncLookup.timeout", timedelta(0)), ("PoolLimits.max_total", 0), ("PoolLimits.max_idle", -1),
        ("PoolLimits.max_wait", timedelta(0)),
    ],
)  # fmt: skip
def test_what_could_never_answer_is_refused(option: str, value: Any) -> None:
    made, _, name = option.partition(".")
    makes: dict[str, Callable[..., Any]] = {
        "Lookup": in_threads,
        "AsyncLookup": in_one_thread,
        "PoolLimits": lambda _, **given: PoolLimits(**given),
    }
    with pytest.raises(DeclarationError, match=rf"\b{made}\.{name}"):
        makes[made](Redis("nowhere"), **{name: value})


def batch_of(ids: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.string())})
