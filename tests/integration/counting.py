"""A pipeline with keyed state on real PostgreSQL, whose rows are staged as Spark would."""

import os
from typing import Any

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text
from epochline.coordinator import Plan
from epochline.operations import Request
from epochline.postgres.ledger.job_session import transaction
from epochline.protocol.staging import StagingTicket
from tests.contract.worlds import end_by_hand, seen_in
from tests.databases import query
from tests.driver import epoch_of
from tests.integration.auditing import NothingLeft, audited
from tests.integration.bench import IN_PUBLIC, Bench, Row

COLUMNS = {"word": "text", "count": "bigint"}


class Counting(Bench):
    """A pipeline that counts words in a state table; the rows given to an epoch are what its transform returns."""

    def __init__(self, dsn: str, superuser: str, *, create: bool = True) -> None:
        super().__init__(dsn, PostgresTable(table="t", columns=COLUMNS), COLUMNS, create=False)
        self.superuser = superuser
        self.pipeline = Pipeline(
            name="orders", source=KafkaSource(topics="orders"), parse=Text(), transform="pipelines.word_count:count",
            sinks=[PostgresTable(table="t", mode="upsert", key="word", columns=COLUMNS, aggregated=True, before_images=9)],
            state=[StateTable(table="words", key="word", columns=COLUMNS, keys="pipelines.word_count:words")],
        )  # fmt: skip
        if create:
            self.create()

    def stage(self, planned: Plan, *rows: Row) -> StagingTicket:  # type: ignore[override]
        ticket = self.attempt(planned, epoch_of(planned).run)
        seen = {("orders", one.tp.partition): seen_in(one) for one in planned.ranges}
        with transaction(self.dsn, ticket.application_name) as session, session.cursor() as cursor:
            for row in rows:
                for table in ("t", "words"):
                    self._insert(cursor, ticket.table(table), row, 0, 0)
            end_by_hand(cursor, ticket, {"t": len(rows), "words": len(rows)}, seen)
        return ticket

    def by_superuser(self, *statements: str) -> None:
        query(self.superuser, "; ".join(statements), options=IN_PUBLIC)

    def audited(self) -> list[str]:
        return audited(self.dsn, "orders", NothingLeft())

    def counts(self, table: str = "words") -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT word, count FROM {table} ORDER BY 1")  # type: ignore[no-any-return]


def forget_in_a_process() -> None:
    """Forget the key that the environment names, for a test that kills this process half-way."""
    it = Counting(os.environ["DSN"], os.environ["DSN"], create=False)
    it.act("forget", Request(actor="ada", reason="article 17"), key=[os.environ["KEY"]], target=True)
