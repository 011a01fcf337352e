"""Quarantined records and claims on them: the adapter behind `epochline.ports.Quarantine`."""

from dataclasses import asdict

from psycopg2 import sql

from epochline.ports import Claims, Selection
from epochline.postgres.ledger.rows import key_of
from epochline.postgres.queries.statements import InTransaction, execute_sql
from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable

# Topic, partition and offset identify a record that failed again: a requeue epoch claims records of one generation, in
# which a topic has one id.
_FAILED_AGAIN = """
UPDATE epochline.quarantined_record q SET reason = s.reason, quarantined_at = clock_timestamp()
FROM epochline.requeue_claim c, {staging} s
WHERE c.pipeline = %s AND c.epoch_id = %s AND q.requeued_by IS NULL
  AND (q.pipeline, q.generation, q.topic_id, q.partition, q."offset")
      = (c.pipeline, c.generation, c.topic_id, c.partition, c."offset")
  AND (s.topic, s.partition, s."offset") = (q.topic, q.partition, q."offset")
"""
_REQUEUED = """
UPDATE epochline.quarantined_record q SET requeued_by = c.epoch_id, requeued_at = clock_timestamp()
FROM epochline.requeue_claim c
WHERE c.pipeline = %s AND c.epoch_id = %s AND q.requeued_by IS NULL
  AND (q.pipeline, q.generation, q.topic_id, q.partition, q."offset")
      = (c.pipeline, c.generation, c.topic_id, c.partition, c."offset")
  AND NOT EXISTS (SELECT FROM {staging} s WHERE (s.topic, s.partition, s."offset") = (q.topic, q.partition, q."offset"))
"""


class PostgresQuarantine(InTransaction):
    """Quarantined records, and the claims of requeue epochs."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        rows = self._run("quarantine_selected", pipeline=pipeline, **asdict(selection))
        return {(row.topic, row.partition): row.records for row in rows}

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        values = {"pipeline": epoch.pipeline, "claiming": epoch.epoch_id, **asdict(selection)}
        return self._run("claim_quarantined", **values).rowcount

    def claims(self, epoch: Epoch) -> Claims:
        return {(row.topic, row.partition): row.records for row in self._run("requeue_claims", **key_of(epoch))}

    def claims_are_free(self, epoch: Epoch) -> bool:
        return not any(row.requeued for row in self._run("requeue_claims", **key_of(epoch)))

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        staging = sql.Identifier("epochline_staging", staged.table)
        values = (epoch.pipeline, epoch.epoch_id)
        stay = execute_sql(self._connection, sql.SQL(_FAILED_AGAIN).format(staging=staging), values)[0]
        done = execute_sql(self._connection, sql.SQL(_REQUEUED).format(staging=staging), values)[0]
        return done, stay
