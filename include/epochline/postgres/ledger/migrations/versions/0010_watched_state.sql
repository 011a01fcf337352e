-- What proves that nobody wrote a state table past its triggers, and what an epoch leaves unread.

-- The trace of the catalog when the table was last read whole (statement state_trace); NULL: it was never read, or a
-- replicating session wrote to it. While the trace is the same, the triggers have seen every write.
ALTER TABLE epochline.state_table ADD COLUMN trace text;

-- The partitions, as [topic, partition], that still had unread records after the epoch's ranges when it was planned:
-- none of them is idle. NULL for a pipeline without windows, and for epochs that were planned before this migration.
ALTER TABLE epochline.epoch ADD COLUMN unread jsonb;
