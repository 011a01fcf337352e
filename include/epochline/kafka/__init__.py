"""Kafka as source and sink, outside of Spark: planning, publishing to topics, audits and a feeder."""
