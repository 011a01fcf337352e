"""Kafka, as planning needs it, and a feeder. The data itself is read by Spark."""
