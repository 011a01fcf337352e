"""A shop whose changes of orders a connector sends: the source of the example `cdc_orders`."""

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from epochline.config.discovery import find
from tests.integration.in_process import InProcess

DECLARED = find("cdc_orders", Path(__file__).parents[2] / "dags" / "examples")

Order = tuple[str | None, Decimal | None, str | None, datetime]
Record = tuple[bytes | None, bytes | None]


@dataclass
class Shop:
    """A source table, and the connector that sends its changes."""

    rng: random.Random
    orders: dict[int, Order] = field(default_factory=dict)
    log: list[tuple[int, int, Order | None, str]] = field(default_factory=list)
    """Per change: position in the source's log, key, row after it, operation."""
    lsn: int = 1 << 40
    large: bool = False
    """Whether customers are large texts, which PostgreSQL does not log where an update leaves them as they are."""
    left_out: set[int] = field(default_factory=set)
    """Positions of updates whose customer was not logged."""

    def change(self) -> list[Record]:
        """Change one order; the records that the connector sends of it."""
        key = self.rng.randrange(8)
        self.lsn += self.rng.randint(1, 400)
        if key in self.orders and self.rng.random() < 0.4:
            del self.orders[key]
            self.log.append((self.lsn, key, None, "d"))
        else:
            operation = "u" if key in self.orders else self.rng.choice("cr")
            customer = self.rng.choice(["ada", 'q"\\', "grün", None])
            if self.large and operation == "u" and self.rng.random() < 0.6:
                customer = self.orders[key][0]
                self.left_out.add(self.lsn)
            self.orders[key] = (
                customer,
                self.rng.choice([Decimal("0.10"), Decimal("9999999999.99"), None]),
                self.rng.choice(["new", "paid"]),
                datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.rng.randrange(10**15)),
            )
            self.log.append((self.lsn, key, self.orders[key], operation))
        return self.sent(self.log[-1])

    def sent(self, change: tuple[int, int, Order | None, str]) -> list[Record]:
        """What the connector sends of a change, and sends again after a restart."""
        lsn, key, row, operation = change
        key_bytes = self._document({"id": key})
        before = {"id": key} if self.rng.random() < 0.5 or operation != "d" else None
        after = None if row is None else {
            "id": key, "customer": row[0], "amount": None if row[1] is None else str(row[1]), "status": row[2],
            "placed_at": row[3].isoformat().replace("+00:00", "Z"),
        }  # fmt: skip
        if after is not None and lsn in self.left_out:
            after["customer"] = "__debezium_unavailable_value"
        event = {"op": operation, "before": before, "after": after, "source": {"lsn": lsn, "ts_ms": 1}, "ts_ms": 2}
        records: list[Record] = [(key_bytes, self._document(event))]
        return [*records, (key_bytes, None)] if operation == "d" else records

    def _document(self, content: dict[str, Any]) -> bytes:
        wrapped = {"schema": {"type": "struct"}, "payload": content}
        return json.dumps(wrapped if self.rng.random() < 0.5 else content).encode()


def orders_in(it: InProcess, table: str = "examples.orders") -> dict[int, Order]:
    rows = it.sql(f"SELECT id, customer, amount, status, placed_at FROM {table}")
    return {key: (customer, amount, status, at.astimezone(UTC)) for key, customer, amount, status, at in rows}
