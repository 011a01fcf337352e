"""The audit: reads committed ranges again from the source and compares them with the ledger and the targets.

`preview_ranges` reads ranges that are not committed yet, and tells what they would give.
"""

from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, SinkResult, Summary
from epochline.audit.preview import ParsedRecords, parse_again, preview_ranges
from epochline.audit.run import audit

__all__ = [
    "Difference",
    "EpochResult",
    "ParsedRecords",
    "PartitionResult",
    "Reporter",
    "SinkResult",
    "Summary",
    "audit",
    "parse_again",
    "preview_ranges",
]
