-- The pages of the quarantine, the newest epoch first, and the records of one epoch: without it, each page sorted the whole
-- quarantine of the pipeline.
CREATE INDEX newest_quarantined ON epochline.quarantined_record (pipeline, (-epoch_id), topic, partition, "offset");
