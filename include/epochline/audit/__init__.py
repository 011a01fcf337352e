"""The audit: reads committed ranges again from the source and compares them with the ledger and the targets.

`audit_foreign` compares a table that another program wrote, without a ledger.
`preview_ranges` reads ranges that are not committed yet, and tells what they would give.
"""

from epochline.arrow.stage.again import RunAgain
from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, SinkResult, Summary
from epochline.audit.foreign import ForeignResult, ForeignSummary, audit_foreign
from epochline.audit.preview import ParsedRecords, parse_again, preview_ranges
from epochline.audit.run import audit
from epochline.audit.several import SeveralReaders

__all__ = [
    "Difference",
    "EpochResult",
    "ForeignResult",
    "ForeignSummary",
    "ParsedRecords",
    "PartitionResult",
    "Reporter",
    "RunAgain",
    "SeveralReaders",
    "SinkResult",
    "Summary",
    "audit",
    "audit_foreign",
    "parse_again",
    "preview_ranges",
]
