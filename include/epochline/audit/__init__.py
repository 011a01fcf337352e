"""The audit: committed ranges read again from Kafka, held against the ledger and the targets."""

from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, SinkResult, Summary
from epochline.audit.run import audit

__all__ = ["Difference", "EpochResult", "PartitionResult", "Reporter", "SinkResult", "Summary", "audit"]
