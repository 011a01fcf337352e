"""Turn parsed batches into the rows and bytes that staging takes."""
