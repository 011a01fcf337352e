"""Bounds on a real PostgreSQL: what an author's SQL may do and say, and with what an epoch is compared."""

import itertools
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from epochline import Bounds, Json, KafkaSource, Measure, Pipeline, PostgresTable
from epochline.errors import MeasureError
from epochline.operations import Request
from epochline.protocol.epoch import Approval, Epoch, EpochState
from tests.databases import query
from tests.integration.in_process import InProcess, over_records

pytestmark = pytest.mark.server

COLUMNS = {"id": "bigint", "amount": "numeric(12,2)"}
ADA = Request(actor="ada@here", reason="the campaign began")


@dataclass
class Amounts:
    """A pipeline of records with an id and an amount; each epoch reads those that are given to it."""

    dsn: str
    bounds: Bounds | None = None
    table: dict[str, Any] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    line: InProcess | None = None
    ids: Any = field(default_factory=itertools.count)

    def declared(self) -> Pipeline:
        return Pipeline(
            name="amounts", source=KafkaSource(topics="amounts"), parse=Json(columns=COLUMNS), bad_records="quarantine",
            sinks=[PostgresTable(**{"table": "amounts", "columns": COLUMNS, **self.table})], bounds=self.bounds,
        )  # fmt: skip

    def stage(self, *amounts: float | str | None, ids: list[int] | None = None) -> Epoch:
        """Stage and seal an epoch of these amounts."""
        values = [b'{"id": %d, "amount": %s}' % (number, str(amount if amount is not None else "null").encode())
                  for number, amount in zip(ids or self.ids, amounts, strict=False)]  # fmt: skip
        self.records += values
        if self.line is None:
            self.line = over_records(self.dsn, self.declared(), self.records)
        else:
            self.line.pipeline = self.declared()
            self.line.source.produce("amounts", 0, len(values))
        planned, _, _ = self.line.sealed()
        assert planned.epoch is not None
        return self.epoch(planned.epoch.epoch_id)

    def epoch(self, epoch_id: int) -> Epoch:
        assert self.line is not None
        with self.line.ledger.transaction() as tx:
            return tx.epochs.lock("amounts", epoch_id)

    def commit(self, *amounts: float | str | None, **options: Any) -> Epoch:
        epoch = self.stage(*amounts, **options)
        assert self.line is not None
        if epoch.approval == Approval.AWAITED:
            self.line.act("approve", ADA, epoch=epoch.epoch_id)
        return self.line.commit(epoch.epoch_id).epoch


@pytest.fixture
def amounts(postgres_dsn: str) -> Amounts:
    return Amounts(postgres_dsn)


def measures(sql: str, **limits: Any) -> Bounds:
    return Bounds(measures=(Measure(name="measure", sql=sql, **limits),))


@pytest.mark.parametrize(
    ("sql", "limits", "outside"),
    [
        ("SELECT sum(amount) FROM staged", {"most": 60}, None),
        ("SELECT sum(amount) FROM staged", {"most": 59}, "measure is 60, at most 59 expected"),
        ("SELECT count(*) FROM staged WHERE amount < 0", {"most": 0}, None),
        ("SELECT bool_and(amount > 0) FROM staged", {}, None),
        ("SELECT bool_and(amount > 10) FROM staged", {}, "measure is false"),
        ("SELECT sum(amount) FROM staged WHERE false", {"least": 0}, "measure is NULL"),
        ("SELECT 'NaN'::float8 FROM staged LIMIT 1", {"least": 0}, "measure is NaN"),
        ("SELECT max(amount)::float8 FROM staged", {"most": 30}, None),
        ("SELECT 12345678901234567890.12::numeric FROM staged LIMIT 1", {"most": 1},
         "measure is 12,345,678,901,234,567,890.12, at most 1 expected"),
        ("WITH big AS (SELECT * FROM staged WHERE amount > 10) SELECT count(*) FROM big -- with a comment", {"most": 1},
         "measure is 2, at most 1 expected"),
        ("SELECT count(*) FROM staged s JOIN STAGED t USING (id) WHERE t.amount::text LIKE '%0.00'", {"least": 4},
         "measure is 3, at least 4 expected"),
        ("SELECT count(DISTINCT _offset) FROM staged /* %s {braces} */", {"least": 3}, None),
    ],
)  # fmt: skip
def test_sql_over_the_staged_rows_is_one_number_or_condition(
    amounts: Amounts, sql: str, limits: dict[str, Any], outside: str | None
) -> None:
    amounts.bounds = measures(sql, **limits)

    epoch = amounts.stage(10, 20, 30)

    assert epoch.outside == outside
    assert epoch.approval == (Approval.AWAITED if outside else Approval.INSIDE)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nothing FROM staged", 'failed: column "nothing" does not exist'),
        ("SELECT 1 / (amount - amount) FROM staged", "failed: DivisionByZero"),
        ("SELECT amount FROM staged", "failed: query returned more than one row"),
        ("SELECT amount FROM staged WHERE false", "failed: query returned no rows"),
        ("SELECT count(*), 1 FROM staged", "gave another number of columns"),
        ("SELECT 1 AS a, 2 AS _epochline_value FROM staged LIMIT 1", "gave another number of columns"),
        ("SELECT max(amount)::text FROM staged", "gave neither a number nor a condition"),
        ("SELECT max(id) AS id FROM staged", "gave a number without limits"),
        ("SELECT count(*) FROM staged; SELECT 1", "failed: syntax error"),
        ("SELECT 1 FROM staged) AS m; COMMIT; SELECT to_json(m) FROM (SELECT 2", "failed: "),
        ("DELETE FROM staged RETURNING 1", "failed: "),
        ("SELECT count(*) FROM staged, amounts", "failed: permission denied for table amounts"),
        ("SELECT count(*) FROM staged, epochline.quarantine", "failed: permission denied for view quarantine"),
        ("SELECT nextval('counter') FROM staged LIMIT 1", "failed: "),
        ("SELECT changed() FROM staged LIMIT 1", "failed: cannot execute INSERT in a read-only transaction"),
    ],
)
def test_sql_that_fails_or_would_do_more_than_read_what_is_staged_refuses_the_epoch_by_name(
    amounts: Amounts, sql: str, said: str
) -> None:
    """It is never taken for inside, and its message shows no value of a row."""
    query(amounts.dsn, "CREATE SEQUENCE counter")
    query(amounts.dsn, "CREATE TABLE written (at int)")
    query(amounts.dsn, "GRANT ALL ON SEQUENCE counter TO epochline_writer")
    query(amounts.dsn, "GRANT ALL ON TABLE written TO epochline_writer")
    query(
        amounts.dsn,
        "CREATE FUNCTION changed() RETURNS int LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO written VALUES (1); RETURN 1; END'",
    )
    amounts.bounds = measures(sql, **({} if "without limits" in said else {"most": 100}))

    with pytest.raises(MeasureError, match="measure") as raised:
        amounts.stage(10, 20, 30)

    assert said in str(raised.value)
    assert not raised.value.retryable
    assert amounts.epoch(1).approval is None
    assert query(amounts.dsn, "SELECT count(*) FROM written") == [(0,)]
    assert query(amounts.dsn, "SELECT grantee FROM information_schema.role_table_grants WHERE privilege_type = 'SELECT'"
                 " AND table_schema = 'epochline_staging' AND grantee = 'epochline_writer'") == []  # fmt: skip


def test_sql_that_takes_too_long_refuses_the_epoch(amounts: Amounts) -> None:
    endless = "SELECT count(*) FROM staged, generate_series(1, 1000000000)"
    amounts.bounds = Bounds(
        measures=(Measure(name="slow", sql=endless, most=1),), statement_timeout=timedelta(seconds=1)
    )
    began = time.monotonic()

    with pytest.raises(MeasureError, match="the measure slow of its bounds took longer than 1 s"):
        amounts.stage(1, 2)

    assert time.monotonic() - began < 20


def test_the_rights_and_the_time_out_of_the_seal_are_as_before_once_it_has_measured(amounts: Amounts) -> None:
    """The seal goes on to write, as its own login."""
    amounts.bounds = measures("SELECT count(*) FROM staged", most=1)

    assert amounts.stage(1, 2).approval == Approval.AWAITED


def test_names_and_sql_with_quotes_percent_signs_and_other_scripts_are_taken_as_they_are(amounts: Amounts) -> None:
    name = """umsätze %s %(x)s "quoted" 'single' {braces} \\ 売上"""
    amounts.bounds = Bounds(
        measures=(Measure(name=name, sql="SELECT count(*) FROM staged WHERE '%s{}' <> 'ü''\"'", most=0),)
    )

    epoch = amounts.stage(1)

    assert epoch.outside == f"{name} is 1, at most 0 expected"


def test_an_epoch_is_compared_with_the_median_of_committed_ones_and_the_first_waits(amounts: Amounts) -> None:
    amounts.bounds = measures("SELECT sum(amount) FROM staged", change=0.5, epochs=3)

    first = amounts.commit(100)
    said = [amounts.commit(amount).outside for amount in (120, 1000, 110, 130, 200)]

    assert first.outside == "measure is 100, and no earlier epoch has a number to compare it with"
    assert (first.approval, first.decided_by, first.decided_reason) == (Approval.APPROVED, ADA.actor, ADA.reason)
    # The approved outlier is one of three, so that the median hardly moves.
    assert said == [
        None,
        "measure is 1,000, the median of the last 2 epochs 110 (+809.1%), at most ±50 % expected",
        None,
        None,
        "measure is 200, the median of the last 3 epochs 130 (+53.8%), at most ±50 % expected",
    ]


def test_aborted_and_undone_epochs_and_another_sql_are_no_baseline(amounts: Amounts) -> None:
    amounts.bounds = measures("SELECT sum(amount) FROM staged", change=0.5, first="inside")
    amounts.commit(100)
    amounts.commit(130)
    query(amounts.dsn, "UPDATE epochline.epoch SET undone_by = 2 WHERE epoch_id = 1")
    assert amounts.line is not None

    aborted = amounts.stage(1000)
    amounts.line.act("abort", ADA, epoch=aborted.epoch_id)
    after = amounts.stage(0)

    assert aborted.outside == "measure is 1,000, the last epoch 130 (+669.2%), at most ±50 % expected"
    assert after.outside == aborted.outside
    amounts.line.act("abort", ADA, epoch=after.epoch_id)
    amounts.bounds = measures("SELECT sum(amount + 0) FROM staged", change=0.5, first="inside")
    assert amounts.stage(0).outside is None


def test_keys_that_a_target_has_already_are_a_share_of_the_epochs_keys(amounts: Amounts) -> None:
    amounts.table = {"mode": "upsert", "key": "id"}
    amounts.bounds = Bounds(most_overwritten=0.5)

    assert amounts.commit(1, 2, 3, 4, ids=[1, 2, 3, 4]).outside is None
    assert amounts.commit(1, 2, 3, 4, ids=[3, 4, 5, 6]).outside is None
    epoch = amounts.stage(1, 2, 3, 9, ids=[4, 5, 7, 5])

    assert epoch.outside == "2 of 3 keys of amounts overwritten (66.67%), at most 50 % expected"


def test_bad_records_above_their_share_wait_and_an_abort_leaves_the_quarantine_empty(amounts: Amounts) -> None:
    amounts.bounds = Bounds(most_quarantined=0.5)

    epoch = amounts.stage("1", '"x"', '"y"')

    assert epoch.outside == "2 of 3 records quarantined (66.67%), at most 50 % expected"
    assert amounts.line is not None
    amounts.line.act("abort", ADA, epoch=epoch.epoch_id)
    assert amounts.epoch(epoch.epoch_id).state is EpochState.ABORTED
    assert query(amounts.dsn, "SELECT count(*) FROM epochline.quarantine") == [(0,)]


def test_hours_of_waiting_hold_nothing_open(amounts: Amounts) -> None:
    """No session, no transaction and no lock is left by the seal."""
    amounts.bounds = Bounds(most_rows=0)
    amounts.stage(1, 2)

    mine = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert query(amounts.dsn, f"SELECT application_name, state {mine}") == []
    assert query(amounts.dsn, "SELECT count(*) FROM pg_prepared_xacts") == [(0,)]


@pytest.mark.parametrize(
    "change",
    [
        "state = 'COMMITTED', committed_at = now()",
        "approval = 'approved'",
        "approval = 'granted'",
        "attempt = attempt + 1",
        "approval = 'inside', judged_attempt = 2",
        "judged_attempt = NULL",
    ],
)
def test_the_ledger_itself_refuses_an_approval_that_nobody_gave(amounts: Amounts, change: str) -> None:
    amounts.bounds = Bounds(most_rows=0)
    amounts.stage(1)

    with pytest.raises(psycopg2.errors.CheckViolation):
        query(amounts.dsn, f"UPDATE epochline.epoch SET {change}")
