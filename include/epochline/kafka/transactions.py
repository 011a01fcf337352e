"""Who holds the last stable offset back: the open transactions of a partition, as far as the broker tells (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError

from epochline.protocol.planning import OpenTransaction


def open_transactions(
    partitions: Sequence[KafkaPartition], call: Callable[..., Any]
) -> dict[KafkaPartition, tuple[OpenTransaction, ...]]:
    """The transactions that have written to the partitions and not ended, the oldest first.

    Empty where the broker is too old or its rights do not allow to ask: who holds records back is a help to the
    operator, and no plan fails for the lack of it.

    Args:
        partitions: those whose last stable offset is below their end.
        call: calls a method of the admin client by its name.
    """
    if not partitions:
        return {}
    try:
        producers = call("describe_producers", partitions)
    except KafkaError:
        return {}
    writing = {
        key: [one for one in state.active_producers if one.current_transaction_start_offset >= 0]
        for key, state in producers.items()
    }
    known = _by_producer((one.producer_id for some in writing.values() for one in some), call)
    return {
        key: tuple(
            sorted(
                (_transaction(one, known.get(one.producer_id)) for one in some),
                key=lambda transaction: transaction.start_offset,
            )
        )
        for key, some in writing.items()
    }


def _by_producer(producer_ids: Iterable[int], call: Callable[..., Any]) -> Mapping[int, tuple[str, Any]]:
    """Transactional id and description of the producers that a coordinator knows."""
    wanted = sorted(set(producer_ids))
    if not wanted:
        return {}
    try:
        listed = call("list_transactions", producer_id_filters=wanted)
        names = [one.transactional_id for some in listed.values() for one in some]
        described = call("describe_transactions", names) if names else {}
    except KafkaError:
        return {}
    return {one.producer_id: (name, one) for name, one in described.items()}


def _transaction(producer: Any, known: tuple[str, Any] | None) -> OpenTransaction:
    name, described = known or (None, None)
    return OpenTransaction(
        start_offset=producer.current_transaction_start_offset,
        producer_id=producer.producer_id,
        last_write_at=_moment(producer.last_timestamp),
        transactional_id=name,
        begun_at=_moment(described.transaction_start_time_ms) if described else None,
        timeout=timedelta(milliseconds=described.transaction_timeout_ms) if described else None,
    )


def _moment(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None
