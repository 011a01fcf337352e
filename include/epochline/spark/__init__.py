"""The Spark side of an attempt: read the planned ranges, parse, copy into staging, say what was written."""
