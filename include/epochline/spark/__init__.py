"""The Spark side of an attempt: reads the planned ranges, parses, copies into staging, and reports what it wrote."""
