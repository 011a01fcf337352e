"""The use cases: plan, begin, renew, seal, commit, publish, tell, abort. They alone change a state."""

from epochline.coordinator.abort import abort
from epochline.coordinator.begin import begin, renew
from epochline.coordinator.commit import Receipt, commit
from epochline.coordinator.plan import LEASE, Plan, PlanOutcome, Preview, origins_of, plan, preview
from epochline.coordinator.publish import Published, publish
from epochline.coordinator.seal import seal
from epochline.coordinator.startup import ask_startup
from epochline.coordinator.tell import tell

__all__ = [
    "LEASE",
    "Plan",
    "PlanOutcome",
    "Preview",
    "Published",
    "Receipt",
    "abort",
    "ask_startup",
    "begin",
    "commit",
    "origins_of",
    "plan",
    "preview",
    "publish",
    "renew",
    "seal",
    "tell",
]
