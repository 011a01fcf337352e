"""The use cases: plan, begin, renew, seal, commit, abort. They alone change a state."""

from epochline.coordinator.abort import abort
from epochline.coordinator.begin import begin, renew
from epochline.coordinator.commit import Receipt, commit
from epochline.coordinator.plan import LEASE, Plan, PlanOutcome, Preview, plan, preview
from epochline.coordinator.seal import seal

__all__ = [
    "LEASE",
    "Plan",
    "PlanOutcome",
    "Preview",
    "Receipt",
    "abort",
    "begin",
    "commit",
    "plan",
    "preview",
    "renew",
    "seal",
]
