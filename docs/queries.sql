-- Queries for people who look after pipelines. Run them with psql, or with any client of the target database.
-- Each block stands alone: a name, what it answers, one statement. The views only ever gain columns.

-- name: where_is_each_pipeline
-- How far each partition is committed, and the epoch that is on its way, if any.
SELECT h.pipeline, h.generation, h.topic, h.partition, h.origin_offset, h.next_offset,
       h.epoch_id AS last_epoch, h.committed_at, u.epoch_id AS unfinished_epoch, u.state AS unfinished_state,
       u.run_id AS unfinished_run
FROM epochline.heads h
LEFT JOIN epochline.epochs u ON u.pipeline = h.pipeline AND u.state IN ('PLANNED', 'PRE_COMMITTED')
ORDER BY h.pipeline, h.topic, h.partition;

-- name: what_is_unfinished
-- Epochs between their plan and their commit: whose they are, what they read, and whether their lease is alive.
SELECT e.pipeline, e.epoch_id, e.state, e.attempt, e.run_id, e.planned_at, e.pre_committed_at,
       e.state = 'PLANNED' AND e.lease_until < clock_timestamp() AS lease_expired, e.approval,
       o.topic, o.partition, o.start_offset, o.until_offset
FROM epochline.epochs e JOIN epochline.offsets o USING (pipeline, epoch_id)
WHERE e.state IN ('PLANNED', 'PRE_COMMITTED')
ORDER BY e.pipeline, o.topic, o.partition;

-- name: is_the_chain_whole
-- INV-1: every committed range starts where the one before it ended. No row means that the chain is whole.
SELECT pipeline, generation, topic, topic_id, partition, epoch_id, ended_before, start_offset, until_offset
FROM (SELECT *, lag(until_offset) OVER chain AS ended_before, row_number() OVER chain AS place
      FROM epochline.committed_range
      WINDOW chain AS (PARTITION BY pipeline, generation, topic_id, partition
                       ORDER BY start_offset NULLS FIRST, until_offset)) c
WHERE (place = 1) <> (start_offset IS NULL) OR (place > 1 AND start_offset IS DISTINCT FROM ended_before)
   OR until_offset <= start_offset
ORDER BY pipeline, generation, topic, partition, place;

-- name: how_long_did_records_wait
-- The age of each epoch's oldest and newest record at its commit, by Kafka's timestamps, newest epochs first.
SELECT pipeline, epoch_id, kind, records_read, longest_latency_seconds, shortest_latency_seconds, publish_seconds
FROM epochline.phases
WHERE longest_latency_seconds IS NOT NULL
ORDER BY pipeline, epoch_id DESC LIMIT 100;

-- name: which_epoch_wrote_this_row
-- For a row of access_log, by the record that it came from: the epoch, its run, and when it became visible.
SELECT a._topic, a._partition, a._offset, e.pipeline, e.epoch_id, e.attempt, e.dag_id, e.run_id, e.committed_at
FROM public.access_log a
JOIN epochline.offsets o ON o.epoch_id = a._epoch AND o.topic = a._topic AND o.partition = a._partition
                        AND a._offset >= o.start_offset AND a._offset < o.until_offset
JOIN epochline.epochs e ON e.pipeline = o.pipeline AND e.epoch_id = o.epoch_id
WHERE o.pipeline = 'access_log' AND a._topic = 'access_log' AND a._partition = 0 AND a._offset = 0;

-- name: what_was_quarantined
-- Records that were kept instead of applied, newest first, with the reason and the first bytes of the value.
SELECT pipeline, epoch_id, topic, partition, "offset", reason, quarantined_at,
       encode(substring(value FROM 1 FOR 60), 'escape') AS value_begins
FROM epochline.quarantine
ORDER BY quarantined_at DESC, pipeline, topic, partition, "offset"
LIMIT 100;

-- name: attempts_and_fenced_writes
-- Every try at staging an epoch: what became of it, how many rows, and how many writes of it were refused.
SELECT pipeline, epoch_id, attempt, state, run_id, host, started_at, ended_at, rows_staged, fenced_writes, error
FROM epochline.attempts
ORDER BY pipeline, epoch_id DESC, attempt DESC
LIMIT 100;

-- name: what_is_not_shown_yet
-- Committed epochs that a topic, a folder or another sink does not show yet, the oldest first: what `publish` has to do.
SELECT pipeline, sink, epoch_id, state, rows, due_at, tried_at, now() - due_at AS waits
FROM epochline.receipts
WHERE state <> 'SHOWN'
ORDER BY pipeline, sink, epoch_id;

-- name: which_sinks_show_an_epoch
-- Each sink's receipt of the newest epochs: how many rows it got, when, and how long that took.
SELECT pipeline, epoch_id, sink, state, rows, shown_at, seconds
FROM epochline.receipts
ORDER BY pipeline, epoch_id DESC, sink
LIMIT 100;
