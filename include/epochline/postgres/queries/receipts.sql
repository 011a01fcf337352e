-- Receipts: which sink shows which epoch.

-- name: write_receipt
-- Write the receipt of one sink. A manifest names a topic by its outbox; a receipt names it by the topic.
INSERT INTO epochline.receipt (pipeline, epoch_id, sink, attempt_id, rows, body, shown_at,
                               inserted, updated, deleted, superseded, unchanged)
SELECT %(pipeline)s, %(epoch_id)s, %(sink)s, m.attempt_id, m.rows, coalesce(m.body, '{}'),
       CASE WHEN %(shown)s THEN now() END,
       %(inserted)s, %(updated)s, %(deleted)s, %(superseded)s, %(unchanged)s
FROM epochline.manifest m WHERE m.attempt_id = %(attempt_id)s AND m.sink = %(manifest)s

-- name: due_receipts
-- Epochs that a sink does not show yet, in the order in which they are published.
SELECT r.epoch_id, r.sink, r.rows, r.body, r.tried_at IS NOT NULL AS tried, a.attempt, a.token, e.generation
FROM epochline.receipt r
JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (r.pipeline, r.epoch_id)
WHERE r.pipeline = %(pipeline)s AND r.shown_at IS NULL ORDER BY r.epoch_id, r.sink

-- name: unpublished
-- The number of epochs that each sink does not show yet.
SELECT sink, count(*) AS epochs FROM epochline.receipt WHERE pipeline = %(pipeline)s AND shown_at IS NULL
GROUP BY sink ORDER BY sink

-- name: try_to_show
-- Record that a task starts to publish an epoch.
UPDATE epochline.receipt SET tried_at = coalesce(tried_at, clock_timestamp())
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND sink = %(sink)s AND shown_at IS NULL

-- name: mark_shown
-- Record that a sink shows an epoch.
UPDATE epochline.receipt SET shown_at = clock_timestamp(), seconds = %(seconds)s
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND sink = %(sink)s AND shown_at IS NULL

-- name: receipts_of_epoch
-- The receipts of one epoch.
SELECT r.epoch_id, r.sink, r.rows, r.body, r.shown_at IS NOT NULL AS shown, a.attempt, a.token, e.generation
FROM epochline.receipt r
JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.epoch e ON (e.pipeline, e.epoch_id) = (r.pipeline, r.epoch_id)
WHERE r.pipeline = %(pipeline)s AND r.epoch_id = %(epoch_id)s ORDER BY r.sink

-- name: last_shown
-- The newest epoch that a sink shows.
SELECT max(epoch_id) FROM epochline.receipt
WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND shown_at IS NOT NULL

-- name: given_elsewhere
-- The newest epoch of a folder that was given an attempt under a former name, if it is a later one.
SELECT r.sink, r.epoch_id FROM epochline.receipt n JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.receipt r ON r.pipeline = n.pipeline AND r.sink = n.sink AND r.epoch_id > n.epoch_id
WHERE n.pipeline = %(pipeline)s AND a.token = CAST(%(token)s AS uuid) AND starts_with(n.sink, 'files:')
  AND n.sink <> ALL (CAST(%(declared)s AS text[]))
  AND NOT EXISTS (SELECT FROM epochline.receipt own WHERE own.attempt_id = a.attempt_id AND own.sink = %(sink)s)
ORDER BY r.epoch_id DESC, r.sink LIMIT 1

-- name: shown_rate
-- The rows per second of a sink, over the newest epochs that took long enough to measure.
SELECT sum(rows) / sum(seconds) FROM (
    SELECT rows, seconds FROM epochline.receipt
    WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND shown_at IS NOT NULL AND seconds > 0 AND rows >= 1000
    ORDER BY epoch_id DESC LIMIT 10) newest

-- name: committed_as
-- Whether this attempt of this epoch was committed for the sink, or an operator accepted it.
SELECT EXISTS (SELECT FROM epochline.receipt r JOIN epochline.attempt a USING (attempt_id)
               WHERE r.pipeline = %(pipeline)s AND r.sink = %(sink)s AND r.epoch_id = %(epoch_id)s
                 AND a.token = CAST(%(token)s AS uuid))
    OR EXISTS (SELECT FROM epochline.accepted_epoch
               WHERE pipeline = %(pipeline)s AND shown_by = %(sink)s AND token = CAST(%(token)s AS uuid))

-- name: knows_token
-- Whether the ledger knows a token. A sealed attempt counts: a later run may commit it, and a newer copy of this
-- ledger may have committed it.
SELECT EXISTS (SELECT FROM epochline.attempt a JOIN epochline.epoch e USING (pipeline, epoch_id)
               WHERE a.token = CAST(%(token)s AS uuid) AND a.pipeline = %(pipeline)s AND a.sealed_at IS NOT NULL
                 AND a.fenced_at IS NULL AND e.state IN ('PRE_COMMITTED', 'COMMITTED'))
    OR EXISTS (SELECT FROM epochline.accepted_epoch WHERE pipeline = %(pipeline)s AND token = CAST(%(token)s AS uuid))
       AS known

-- name: accept_epoch
-- Record an epoch that an operator accepted although this ledger does not know it.
INSERT INTO epochline.accepted_epoch (pipeline, shown_by, generation, epoch_id, token, reached)
VALUES (%(pipeline)s, %(shown_by)s, %(generation)s, %(epoch_id)s, CAST(%(token)s AS uuid), CAST(%(reached)s AS jsonb))

-- name: accepted_epochs
-- The accepted epochs, the newest row of each.
SELECT shown_by, generation, epoch_id, token::text, reached FROM (
    SELECT DISTINCT ON (shown_by, token) * FROM epochline.accepted_epoch
    WHERE pipeline = %(pipeline)s ORDER BY shown_by, token, accepted_id DESC) newest
ORDER BY accepted_id

-- name: begin_mirror
-- Give a number to a write of the heads to the consumer group. No write reaches Kafka a thousand writes late.
WITH given AS (SELECT coalesce(max(number), 0) + 1 AS number FROM epochline.mirror WHERE pipeline = %(pipeline)s),
     refused AS (DELETE FROM epochline.mirror WHERE pipeline = %(pipeline)s AND confirmed_at IS NULL
                 AND number <= (SELECT number FROM given) - 1000)
INSERT INTO epochline.mirror (pipeline, number, generation, epoch_id, topics)
SELECT %(pipeline)s, number, %(generation)s, %(epoch_id)s, CAST(%(topics)s AS text[]) FROM given
RETURNING number

-- name: confirm_mirror
-- Record that Kafka took a write, and which numbers had been given by then.
UPDATE epochline.mirror SET confirmed_at = clock_timestamp(),
    latest_then = (SELECT max(number) FROM epochline.mirror WHERE pipeline = %(pipeline)s)
WHERE pipeline = %(pipeline)s AND number = %(number)s

-- name: delete_replaced_mirrors
-- Delete the writes that had been confirmed before a confirmed one began.
DELETE FROM epochline.mirror WHERE pipeline = %(pipeline)s AND latest_then < (
    SELECT max(number) FROM epochline.mirror WHERE pipeline = %(pipeline)s AND confirmed_at IS NOT NULL)

-- name: last_mirror
-- The newest confirmed write of the heads to the consumer group, and the others that may have come after it.
SELECT number, generation, epoch_id, topics, clock_timestamp() - confirmed_at AS age,
       ARRAY(SELECT other.number FROM epochline.mirror other
             WHERE other.pipeline = m.pipeline AND other.number <> m.number) AS after
FROM epochline.mirror m WHERE pipeline = %(pipeline)s AND confirmed_at IS NOT NULL ORDER BY number DESC LIMIT 1

-- name: forget_mirrors
-- Take no earlier write for confirmed.
UPDATE epochline.mirror SET confirmed_at = NULL, latest_then = NULL
WHERE pipeline = %(pipeline)s AND confirmed_at IS NOT NULL

-- name: forget_mirrors_of_topic
-- Take no earlier write for one of a topic's offsets.
UPDATE epochline.mirror SET topics = array_remove(topics, CAST(%(topic)s AS text)) WHERE pipeline = %(pipeline)s

-- name: unannounced_receipts
-- Epochs that a sink shows and that no task has announced successfully.
SELECT r.epoch_id, r.sink, r.rows, r.shown_at,
       (SELECT coalesce(jsonb_object_agg(topic, partitions), '{}') FROM (
            SELECT topic, jsonb_object_agg(partition, jsonb_build_array(start_offset, until_offset)) AS partitions
            FROM epochline.planned_range p WHERE (p.pipeline, p.epoch_id) = (r.pipeline, r.epoch_id)
            GROUP BY topic) topics) AS offsets
FROM epochline.receipt r
WHERE r.pipeline = %(pipeline)s AND r.acknowledged_at IS NULL AND r.shown_at IS NOT NULL
ORDER BY r.epoch_id, r.sink LIMIT %(most)s

-- name: announce_receipt
-- Record which run announces an epoch.
UPDATE epochline.receipt SET announced_by = %(run_id)s
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND sink = %(sink)s

-- name: acknowledge_receipt
-- Record that an announcement was acknowledged.
UPDATE epochline.receipt SET acknowledged_at = clock_timestamp()
WHERE pipeline = %(pipeline)s AND epoch_id = %(epoch_id)s AND sink = %(sink)s AND announced_by IS NOT NULL
  AND acknowledged_at IS NULL

-- name: limit_idle_time
-- How long this transaction may wait for its client.
SELECT set_config('idle_in_transaction_session_timeout', CAST(CAST(%(milliseconds)s AS integer) AS text), true)
