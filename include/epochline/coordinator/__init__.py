"""The use cases: plan, begin, renew, stage, seal, commit, publish, announce, abort. Only they change a state."""

from epochline.coordinator.abort import abort
from epochline.coordinator.announce import announce
from epochline.coordinator.begin import begin, renew
from epochline.coordinator.commit import CommitResult, commit
from epochline.coordinator.intent import LEASE, Plan, PlanOutcome, PlanRequest
from epochline.coordinator.observe import observe_startup
from epochline.coordinator.plan import origins_of, plan
from epochline.coordinator.preview import PlanPreview, preview, upcoming_ranges
from epochline.coordinator.publish import Published, publish
from epochline.coordinator.reasons import keep_plan_error
from epochline.coordinator.retry import pause_before_retry
from epochline.coordinator.seal import seal
from epochline.coordinator.stage import stage
from epochline.coordinator.waking import Lookout, Watched, look

__all__ = [
    "LEASE",
    "CommitResult",
    "Lookout",
    "Plan",
    "PlanOutcome",
    "PlanPreview",
    "PlanRequest",
    "Published",
    "Watched",
    "abort",
    "announce",
    "begin",
    "commit",
    "keep_plan_error",
    "look",
    "observe_startup",
    "origins_of",
    "pause_before_retry",
    "plan",
    "preview",
    "publish",
    "renew",
    "seal",
    "stage",
    "upcoming_ranges",
]
