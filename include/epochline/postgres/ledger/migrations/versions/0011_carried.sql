-- A generation that goes on with a log carries over what was committed of it: one range from the origin to the head,
-- which no epoch of its own committed. So the origin stays where it was, and extend-back begins there.
ALTER TABLE epochline.committed_range
    DROP CONSTRAINT committed_range_check1,
    ADD CONSTRAINT an_epoch_committed_it
        CHECK ((start_offset IS NULL) = (epoch_id IS NULL) OR chosen_by IN ('declared loss', 'carried over'));
