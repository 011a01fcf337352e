"""The audit: reads committed ranges again from Kafka and compares them with the ledger and the targets."""

from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, SinkResult, Summary
from epochline.audit.run import audit

__all__ = ["Difference", "EpochResult", "PartitionResult", "Reporter", "SinkResult", "Summary", "audit"]
