"""A Kafka topic as a sink, in the model: transactions, producer epochs, and what a read_committed consumer sees.

The product's own `TopicSink` and `TransactionalSender` publish; what they talk to is replaced here: librdkafka's
producer by one that speaks to `Broker`, the ledger's statements by reads of the model's tables. Each request to the
broker and each read is a step, and the answer of a commit can be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from confluent_kafka import KafkaError, KafkaException

from epochline import KafkaTopic, Pipeline, Text
from epochline.declare.topic import CONTROL_TOPIC, Outbox
from epochline.kafka import sending
from epochline.kafka.markers import Marker
from epochline.protocol.epoch import EpochState
from epochline.protocol.sink import Sink
from epochline.sinks import topic as outlet
from epochline.sinks.topic import TopicSink
from tests.in_memory.kafka import FakeKafka
from tests.in_memory.rows import Rows
from tests.model.tables import Violation

if TYPE_CHECKING:
    from tests.model.replay import Session

A = TypeVar("A")

OUT = KafkaTopic(topic="out", value=Text())

Sent = tuple[str, bytes | None, bytes | None]
"""Topic, key and value of a record."""


@dataclass
class Broker:
    """One transactional id as Kafka keeps it. Aborted records are not kept: read_committed never shows them."""

    newest: int = 0
    """The newest producer epoch; producers with an older one are fenced."""
    strangers: int = 0
    """Producers that began without ``init_transactions``, each as if under an id of its own."""
    opened: dict[int, tuple[Sent, ...]] = field(default_factory=dict)
    """By producer, the records of its open transaction."""
    committed: list[tuple[Sent, ...]] = field(default_factory=list)
    """Transactions as read_committed sees them, in their order."""

    def init(self) -> int:
        """Fence the producer that had the id, and abort its transaction."""
        self.opened.pop(self.newest, None)
        self.newest += 1
        return self.newest

    def join(self) -> int:
        """Add a producer that fences no other."""
        self.strangers += 1
        return -self.strangers

    def append(self, producer: int, records: tuple[Sent, ...]) -> bool:
        """Store records of an open transaction; False where the producer is fenced."""
        if self._fenced(producer):
            return False
        self.opened[producer] = (*self.opened.get(producer, ()), *records)
        return True

    def commit(self, producer: int) -> bool:
        """Show the open transaction; False where the producer is fenced."""
        if self._fenced(producer):
            return False
        self.committed.append(self.opened.pop(producer))
        return True

    def abort(self, producer: int) -> bool:
        if self._fenced(producer):
            return False
        self.opened.pop(producer, None)
        return True

    def _fenced(self, producer: int) -> bool:
        return 0 < producer < self.newest

    def last_marker(self, key: bytes) -> Marker | None:
        """What the control topic holds under a key, read committed."""
        found = [
            value for records in self.committed for topic, of, value in records if topic == CONTROL_TOPIC and of == key
        ]
        return Marker.from_body(found[-1]) if found else None


@dataclass
class KafkaWithTopic(FakeKafka):
    """The Kafka of the source, and of the topic that is published to."""

    broker: Broker = field(default_factory=Broker)


class _Settings(dict[str, str]):
    """Stands for the settings of a connection, and leads to the session of the process that uses it."""

    def __init__(self, session: Session) -> None:
        super().__init__({"bootstrap.servers": "the model"})
        self.session = session


@dataclass
class _Reads:
    """The ledger's side of a publisher: each read sees what is committed by then."""

    session: Session

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield self.session


def topic_sink(session: Session, pipeline: Pipeline, name: str) -> Sink:
    """The product's sink of a declaration, on the model's servers."""
    (box,) = (one for one in pipeline.outboxes if one.topic.name == name)
    return TopicSink(pipeline.name, box, lambda: _Settings(session), _Reads(session).connection)


class _Producer:
    """What `TransactionalSender` needs of librdkafka's producer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = 0
        self._queue: list[tuple[Sent, Callable[[Any, Any], None]]] = []

    def _ask(self, request: Callable[[Broker], A], *, can_be_lost: bool = False) -> A:
        answer, end = self._session.request(request, can_be_lost=can_be_lost)
        if end != "ok":
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
        return answer

    def init_transactions(self, _seconds: float) -> None:
        self._number = self._ask(Broker.init)

    def begin_transaction(self) -> None:
        # librdkafka itself would refuse; what the model shows is why somebody has to be fenced.
        self._number = self._number or self._ask(Broker.join)

    def produce(
        self, topic: str, *, value: bytes | None, key: bytes | None, on_delivery: Callable[[Any, Any], None], **_: Any
    ) -> None:
        self._queue.append(((topic, key, value), on_delivery))

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, _seconds: float) -> int:
        queue, self._queue = self._queue, []
        if queue:
            stored = self._ask(lambda broker: broker.append(self._number, tuple(record for record, _ in queue)))
            for _, on_delivery in queue:
                on_delivery(None if stored else _fenced(), SimpleNamespace(offset=lambda: 0))
        return 0

    def commit_transaction(self, _seconds: float) -> None:
        if not self._ask(lambda broker: broker.commit(self._number), can_be_lost=True):
            raise KafkaException(_fenced())

    def abort_transaction(self, _seconds: float) -> None:
        if not self._ask(lambda broker: broker.abort(self._number)):
            raise KafkaException(_fenced())

    def purge(self) -> None:
        self._queue.clear()


def _fenced() -> KafkaError:
    return KafkaError(KafkaError._FENCED, "fenced", True)


def _last_marker(settings: _Settings, pipeline: str, sink: str, *, end: int = -1) -> Marker | None:
    marker = settings.session.read(lambda _, kafka: kafka.broker.last_marker(Marker.key(pipeline, sink)))
    if marker is not None:
        settings.session.met.add("a publisher finds a marker")
    return marker


def _last_shown(session: Session, _pipeline: str, sink: str) -> int | None:
    def read(rows: Rows, _: FakeKafka) -> int | None:
        shown = [
            epoch_id for (_, epoch_id, of), row in rows.receipts.items() if of == sink and row.shown_at is not None
        ]
        return max(shown, default=None)

    return session.read(read)


def _committed_as(session: Session, pipeline: str, sink: str, epoch_id: int, token: str) -> bool:
    def read(rows: Rows, _: FakeKafka) -> bool:
        row = rows.receipts.get((pipeline, epoch_id, sink))
        return row is not None and row.committable.attempt.token == token

    return session.read(read)


def _rows_of(session: Session, outbox: Outbox, epoch_id: int) -> Sequence[Any]:
    def read(rows: Rows, _: FakeKafka) -> tuple[Any, ...]:
        held: Any = rows.targets[outbox.table]
        return tuple(
            (None, f"{partition}@{at}".encode(), (), None, None) for partition, at, of in held if of == epoch_id
        )

    return session.read(read)


@contextmanager
def in_the_model() -> Iterator[None]:
    """Let the product's sink and sender talk to the model."""
    reads = patch.multiple(
        outlet, check_topic=lambda *_: None, make_control_topic=lambda *_: None,
        shown_rate=lambda *_: None, last_marker=_last_marker,
        last_shown=_last_shown, committed_as=_committed_as, rows_of=_rows_of,
    )  # fmt: skip
    sends = patch.multiple(
        sending, new_producer=lambda settings, *_: _Producer(settings.session), partitions_of=lambda *_: 1,
        time=SimpleNamespace(monotonic=lambda: 0.0),
    )  # fmt: skip
    # No reader of the model's one log misses its end.
    ends = patch.object(sending.TransactionalSender, "mark_end", lambda _: 0)
    with reads, sends, ends:
        yield


# What must hold.


def check_topic(rows: Rows, broker: Broker) -> None:
    """Hold what read_committed sees against the ledger.

    Raises:
        Violation: an epoch is there in part, twice, out of order, uncommitted; or a receipt says what is not so.
    """
    for problem in _problems(rows, broker):
        raise Violation(problem)


def _problems(rows: Rows, broker: Broker) -> Iterator[str]:
    of_epochs = _committed_records(rows)
    epoch_of = {record: epoch_id for epoch_id, records in of_epochs.items() for record in records}
    order: list[int] = []
    times: Counter[str] = Counter()
    for transaction in broker.committed:
        records = [str(value, "ascii") for topic, _, value in transaction if topic == OUT.topic and value is not None]
        times.update(records)
        epochs = {epoch_of.get(record) for record in records}
        if None in epochs:
            yield f"INV-2: {', '.join(records)} is in the topic and not committed"
            return
        if len(epochs) > 1 or any(set(records) != of_epochs[one] for one in epochs if one is not None):
            yield f"a transaction of the topic holds {', '.join(records)}, which is not one whole epoch"
        order += [one for one in epochs if one is not None]
    for record, count in times.items():
        if count > 1:
            yield f"INV-5: record {record} is in the topic {count} times"
    if order != sorted(order):
        yield f"the topic holds epochs in the order {', '.join(map(str, order))}"
    for (_, epoch_id, sink), row in rows.receipts.items():
        if sink == OUT.name and row.shown_at is not None and of_epochs.get(epoch_id) and epoch_id not in order:
            yield f"epoch {epoch_id} has a receipt that it is shown, and is not in the topic"


def _committed_records(rows: Rows) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for (_, _, tp), links in rows.chains.items():
        for start, until, epoch_id in links:
            if start is not None and epoch_id is not None:
                found.setdefault(epoch_id, set()).update(f"{tp.partition}@{one}" for one in range(start, until))
    return found


def check_published(rows: Rows, broker: Broker) -> None:
    check_topic(rows, broker)
    there = {
        str(value, "ascii") for sent in broker.committed for topic, _, value in sent if topic == OUT.topic and value
    }
    missing = set().union(*_committed_records(rows).values()) - there
    due = [key for key, row in rows.receipts.items() if row.shown_at is None]
    left = [row for name, table in rows.targets.items() if name.startswith("epochline_outbox") for row in table]
    committed = [key for key, epoch in rows.epochs.items() if epoch.state is EpochState.COMMITTED]
    if missing or due or left:
        raise Violation(
            f"I7: all are dead, later runs published, and of {len(committed)} epochs {sorted(missing)} is not in the"
            f" topic, {due} is due, {left} is in the outbox"
        )
