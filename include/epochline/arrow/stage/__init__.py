"""Turn parsed batches into rows and bytes for staging tables."""
