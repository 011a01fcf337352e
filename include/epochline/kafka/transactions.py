"""The open transactions that hold back a partition's last stable offset (KIP-664)."""

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
    """The open transactions of the partitions, oldest first.

    Returns an empty mapping if the broker is too old, or if the user lacks the right: the transactions only help the
    operator, and no plan fails without them.

    Args:
        partitions: those whose last stable offset is below their end.
        call: calls a method of the admin client by name.
    """
    if not partitions:
        return {}
    try:
        producers = call("describe_producers", partitions)
    except KafkaError:
        return {}
    writing = {
        key: [producer for producer in state.active_producers if producer.current_transaction_start_offset >= 0]
        for key, state in producers.items()
    }
    known = _by_producer((producer.producer_id for active in writing.values() for producer in active), call)
    return {
        key: tuple(
            sorted(
                (_transaction(producer, known.get(producer.producer_id)) for producer in active),
                key=lambda transaction: transaction.start_offset,
            )
        )
        for key, active in writing.items()
    }


def _by_producer(producer_ids: Iterable[int], call: Callable[..., Any]) -> Mapping[int, tuple[str, Any]]:
    """Transactional id and description per producer id, as far as a coordinator knows the producer."""
    wanted = sorted(set(producer_ids))
    if not wanted:
        return {}
    try:
        listed = call("list_transactions", producer_id_filters=wanted)
        names = [transaction.transactional_id for found in listed.values() for transaction in found]
        described = call("describe_transactions", names) if names else {}
    except KafkaError:
        return {}
    return {transaction.producer_id: (name, transaction) for name, transaction in described.items()}


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
