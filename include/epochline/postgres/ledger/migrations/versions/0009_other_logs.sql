-- Logs that became other ones: truncated, put back from a backup, or with holes.

-- In an origin that an adoption wrote: up to this offset the log is the one that earlier generations read. What they
-- committed beyond it was cut off, and other records have its offsets. NULL if nothing was cut off; -1 if nobody knows,
-- because a version before this migration adopted the log at its end.
ALTER TABLE epochline.committed_range ADD COLUMN same_log_until bigint CHECK (same_log_until >= -1);
ALTER TABLE epochline.committed_range DISABLE TRIGGER committed_is_written_once;
UPDATE epochline.committed_range origin SET same_log_until = -1
WHERE origin.start_offset IS NULL AND origin.chosen_by = 'adopted at latest'
  AND EXISTS (SELECT FROM epochline.committed_range c
              WHERE (c.pipeline, c.topic_id, c.partition) = (origin.pipeline, origin.topic_id, origin.partition)
                AND c.generation < origin.generation AND c.start_offset < origin.until_offset);
ALTER TABLE epochline.committed_range ENABLE TRIGGER committed_is_written_once;
