-- What the page for Prometheus reads, beside `page_pipelines`. A reader's login may run all of it.

-- name: metrics_pipelines
-- Of each pipeline: the age of its unfinished epoch, the phases of its last committed one, the sinks of that epoch, its
-- refused writes, and when Kafka last said where its logs end. Ends of one source are asked together, and a topic that it
-- no longer reads keeps its last answer: so the newest answer of each source counts, and the oldest of several sources.
SELECT p.pipeline, u.seconds AS epoch_seconds, f.wait_seconds, f.plan_seconds, f.start_seconds, f.stage_seconds,
       f.seal_seconds, f.commit_seconds, f.publish_seconds, f.longest_latency_seconds, coalesce(w.refused, 0) AS refused,
       ARRAY(SELECT r.sink FROM epochline.receipts r WHERE (r.pipeline, r.epoch_id) = (p.pipeline, c.epoch_id)) AS sinks,
       l.ends_seconds, l.unread_seconds
FROM epochline.pipelines p
LEFT JOIN LATERAL (
    SELECT extract(epoch FROM clock_timestamp() - e.planned_at)::float8 AS seconds FROM epochline.epochs e
    WHERE e.pipeline = p.pipeline AND e.state IN ('PLANNED', 'PRE_COMMITTED') LIMIT 1) u ON true
LEFT JOIN LATERAL (
    SELECT e.epoch_id FROM epochline.epochs e WHERE e.pipeline = p.pipeline AND e.state = 'COMMITTED'
    ORDER BY e.epoch_id DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT * FROM epochline.phases f WHERE (f.pipeline, f.epoch_id) = (p.pipeline, c.epoch_id)) f ON true
LEFT JOIN (SELECT pipeline, count(*) AS refused FROM epochline.fenced_writes GROUP BY pipeline) w
    ON w.pipeline = p.pipeline
CROSS JOIN LATERAL (
    SELECT max(s.ends_seconds) AS ends_seconds, max(s.unread_seconds) AS unread_seconds
    FROM (SELECT extract(epoch FROM clock_timestamp() - max(l.observed_at))::float8 AS ends_seconds,
                 extract(epoch FROM clock_timestamp() - min(l.unread_since))::float8 AS unread_seconds
          FROM epochline.log_ends l WHERE l.pipeline = p.pipeline
          GROUP BY CASE WHEN strpos(l.topic, '/') > 0 THEN split_part(l.topic, '/', 1) END) s) l
WHERE p.dropped_at IS NULL

-- name: metrics_sums
-- What a pipeline's epochs behind a given one add up to, at most `most` of them: first those up to the last committed one,
-- which no run changes any more, then the others. `is_known` says whether the given epoch is the one that was meant:
-- a restored ledger may have another one under its number.
SELECT k.pipeline, s.*,
       k.behind = 0 OR EXISTS (SELECT FROM epochline.epochs e
                               WHERE (e.pipeline, e.epoch_id, e.committed_at) = (k.pipeline, k.behind, k.at)) AS is_known
FROM unnest(%(pipelines)s::text[], %(behind)s::bigint[], %(at)s::timestamptz[], %(last)s::bigint[])
     AS k (pipeline, behind, at, last)
LEFT JOIN LATERAL (
    SELECT e.epoch_id <= k.last AS is_settled, count(*) AS epochs, max(e.epoch_id) AS until,
           (array_agg(e.committed_at ORDER BY e.epoch_id DESC))[1] AS committed_at,
           count(*) FILTER (WHERE e.state = 'COMMITTED') AS committed, sum(e.aborts)::bigint AS aborted,
           sum(greatest(e.attempt - 1, 0))::bigint AS retries,
           coalesce(sum(e.records_read) FILTER (WHERE e.state = 'COMMITTED'), 0)::bigint AS records,
           coalesce(sum(e.records_skipped) FILTER (WHERE e.state = 'COMMITTED'), 0)::bigint AS skipped,
           coalesce(sum(e.records_quarantined) FILTER (WHERE e.state = 'COMMITTED'), 0)::bigint AS quarantined,
           coalesce(sum(e.records_too_late) FILTER (WHERE e.state = 'COMMITTED'), 0)::bigint AS too_late,
           coalesce(sum(e.rows_written) FILTER (WHERE e.state = 'COMMITTED'), 0)::bigint AS rows
    FROM (SELECT * FROM epochline.epochs e WHERE e.pipeline = k.pipeline AND e.epoch_id > k.behind
          ORDER BY e.epoch_id LIMIT %(most)s) e
    GROUP BY 1) s ON true
ORDER BY k.pipeline, s.until

-- name: metrics_states
-- The keys of each state table after the newest epoch that wrote state, and the table's bytes on disk.
SELECT p.pipeline, s.state, s.keys, z.bytes
FROM epochline.pipelines p
JOIN LATERAL (SELECT max(v.epoch_id) AS epoch_id FROM epochline.state v WHERE v.pipeline = p.pipeline) n ON true
JOIN epochline.state s ON (s.pipeline, s.epoch_id) = (p.pipeline, n.epoch_id)
LEFT JOIN epochline.state_sizes z
    ON z.schema_name || '.' || z.table_name = CASE WHEN strpos(s.state, '.') > 0 THEN s.state ELSE 'public.' || s.state END
WHERE p.dropped_at IS NULL
