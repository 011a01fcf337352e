"""Look-ups through an asynchronous client, in a real Redis: order, limits, time-outs, what became of each row (E9, E9b)."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.asyncio import Redis

from epochline.errors import ConfigurationError, DeclarationError, LookupUnavailableError
from epochline.lookup import AsyncLookup, Outcome, over_batches
from epochline_examples.redis_server import CITIES, HASH, redis_server
from tests.waiting import wait_until

LONG, SHORT = timedelta(seconds=60), timedelta(seconds=1)
AnyLookup = AsyncLookup[Any, Any, Any]


class Store:
    """A Redis with the cities, and what the server knows of those who look there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.here = redis.Redis.from_url(url, decode_responses=True)

    def connect(self) -> Any:
        return Redis.from_url(self.url, decode_responses=True)

    async def city(self, client: Any, key: str) -> Any:
        return await client.hget(HASH, key)

    async def waiting_city(self, client: Any, key: str) -> Any:
        """The city, as soon as somebody opens the gate for one."""
        await client.blpop("gate", timeout=60)
        return await client.hget(HASH, key)

    async def city_after_all_others(self, client: Any, key: str) -> Any:
        """The city; that of the first key when the other eight have been answered."""
        if key == "1":
            await client.blpop("gate", timeout=60)
        city = await client.hget(HASH, key)
        if key != "1" and await client.incr("answered") == 8:
            await client.rpush("gate", "open")
        return city

    @property
    def waiting(self) -> int:
        found: Any = self.here.info("clients")
        return int(found["blocked_clients"])

    @property
    def clients(self) -> int:
        """Connections beside the one that asks."""
        found: Any = self.here.info("clients")
        return int(found["connected_clients"]) - 1


@pytest.fixture
def store() -> Iterator[Store]:
    with redis_server() as url:
        one = Store(url)
        with closing(one.here):
            yield one


def lookup_in(store: Store, fetch: Any = None, **options: Any) -> AnyLookup:
    given: dict[str, Any] = {"concurrency": 9, "timeout": LONG, "unavailable": (redis.ConnectionError,), **options}
    return AsyncLookup(fetch or store.city, connect=store.connect, close=Redis.aclose, **given)


def batch_of(ids: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.string())})


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_shipped_lookup_answers_every_key_with_a_client_of_its_own(store: Store, ordered: bool) -> None:
    """E9: nine ids, nine cities; a second round uses the client of the first."""
    shipped = pickle.dumps(
        AsyncLookup(
            city_in,
            connect=partial(Redis.from_url, store.url, decode_responses=True),
            close=Redis.aclose,
            concurrency=9,
            timeout=LONG,
            ordered=ordered,
        )
    )
    asking = pickle.loads(shipped)  # noqa: S301 - what this process has made

    for _ in range(2):
        assert {one.key: one.value for one in asking.each(CITIES)} == CITIES


async def city_in(client: Any, key: str) -> Any:
    return await client.hget(HASH, key)


def test_nine_look_ups_wait_at_the_server_at_the_same_time_in_one_thread(store: Store) -> None:
    """E9, E9b: none is answered before the server holds all nine; a client that is asynchronous needs no threads."""
    threads: set[int] = set()

    async def fetch(client: Any, key: str) -> Any:
        threads.add(threading.get_ident())
        return await store.waiting_city(client, key)

    def release() -> None:
        wait_until(lambda: store.waiting == 9)
        store.here.rpush("gate", *["open"] * 9)

    releasing = threading.Thread(target=release)
    releasing.start()
    found = [one.value for one in lookup_in(store, fetch).each(CITIES)]
    releasing.join()

    assert found == list(CITIES.values())
    assert threads == {threading.get_ident()}


def test_ordered_answers_come_in_the_order_of_the_keys_and_others_as_they_come(store: Store) -> None:
    """E9b, X18: the first look-up ends last, when the others have been answered."""
    ordered = [one.key for one in lookup_in(store, store.city_after_all_others).each(CITIES)]
    store.here.delete("answered")
    unordered = [one.key for one in lookup_in(store, store.city_after_all_others, ordered=False).each(CITIES)]

    assert ordered == list(CITIES)
    assert "1" in unordered[-2:]  # its answer comes together with that of the look-up that lets it go
    assert sorted(unordered) == ordered


@pytest.mark.parametrize("given", [None, "no city"])
def test_a_look_up_that_never_ends_is_settled_at_its_deadline(store: Store, given: str | None) -> None:
    """E9b: the handler is called once, eight rows have their city, and the server no longer waits for the ninth."""
    late: list[str] = []

    async def fetch(client: Any, key: str) -> Any:
        return await (store.waiting_city(client, key) if key == "5" else store.city(client, key))

    def handle(key: str) -> str | None:
        late.append(key)
        return given

    found = {one.key: one for one in lookup_in(store, fetch, timeout=SHORT, on_timeout=handle).each(CITIES)}

    assert late == ["5"]
    assert (found["5"].outcome, found["5"].value) == (Outcome.TIMED_OUT, given)
    assert {key: one.value for key, one in found.items() if key != "5"} == {k: v for k, v in CITIES.items() if k != "5"}
    wait_until(lambda: store.waiting == 0)


def test_a_batch_keeps_its_rows_and_their_order_and_says_what_became_of_each(store: Store) -> None:
    """E9b: a time-out, a failure, an unknown key and a bad row in one batch."""

    async def fetch(client: Any, key: str) -> Any:
        if key == "late":
            await client.blpop("gate", timeout=60)
        return await (client.lpop(HASH) if key == "refused" else store.city(client, key))

    enrich = over_batches(lookup_in(store, fetch, timeout=SHORT), key="id", column="city", kind=pa.string())
    given = pa.RecordBatch.from_pydict(
        {"id": ["1", "late", "refused", "unknown", "2", "9"], "_error": [None, None, None, None, "is no id", None]}
    )

    found = enrich(given)

    assert found.column("city").to_pylist() == ["beijing", None, None, None, None, "chongqing"]
    assert found.column("_error").to_pylist() == [
        None, "the look-up of city timed out after 1 s", "the look-up of city failed (ResponseError)", None, "is no id",
        None,
    ]  # fmt: skip


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_keys_are_taken_as_there_is_room_and_nothing_goes_on_when_nobody_listens(store: Store, ordered: bool) -> None:
    """E9b: keys without end; those that wait at the server are given up."""
    keys = itertools.count()

    async def fetch(client: Any, key: int) -> int:
        if key:
            await client.blpop("gate", timeout=60)
        return key

    found: Any = lookup_in(store, fetch, concurrency=3, ordered=ordered).each(keys)
    with closing(found):
        assert next(found).value == 0

    assert next(keys) == 3
    wait_until(lambda: store.waiting == 0)


def test_the_client_is_closed_when_the_lookup_is_let_go(store: Store) -> None:
    """X17: every task brings new functions; the connections of earlier ones do not add up."""
    asking = lookup_in(store)
    assert [one.value for one in asking.each(["1"])] == ["beijing"]
    assert store.clients == 1

    del asking
    gc.collect()

    wait_until(lambda: store.clients == 0)


def test_a_store_that_cannot_be_reached_fails_the_attempt_and_no_record() -> None:
    """INV-9: otherwise a stopped store would have every record of an epoch set aside."""
    nowhere = Store("unix:///nowhere/canary.sock")
    enrich = over_batches(lookup_in(nowhere), key="id", column="city", kind=pa.string())

    with pytest.raises(LookupUnavailableError, match="no connection could be opened") as caught:
        enrich(batch_of(["1"]))

    assert caught.value.retryable
    assert "canary" not in str(caught.value)
    assert enrich(batch_of([])).schema.names == ["id", "city", "_error"]


def test_what_connect_says_of_a_wrong_configuration_is_passed_on(store: Store) -> None:
    def connect() -> Any:
        raise ConfigurationError("set REDIS_URL")

    asking: AnyLookup = AsyncLookup(store.city, connect=connect, close=Redis.aclose, concurrency=1, timeout=LONG)
    with pytest.raises(ConfigurationError, match="REDIS_URL"):
        list(asking.each(["1"]))


@pytest.mark.parametrize(("option", "value"), [("concurrency", 0), ("timeout", timedelta(0))])
def test_a_lookup_that_could_never_answer_is_refused(option: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=f"AsyncLookup.{option}"):
        lookup_in(Store("unix:///nowhere"), **{option: value})
