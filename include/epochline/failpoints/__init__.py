"""Failpoints: places between two I/O calls at which a test kills, stops, delays or breaks this very process (F1).

Off unless ``EPOCHLINE_FAILPOINT`` names one; an install that sets ``EPOCHLINE_FAILPOINTS=forbidden`` never has one.
"""

from epochline.failpoints.named import FailpointError, arm, failpoint
from epochline.failpoints.sites import known_failpoints
from epochline.failpoints.watched import watched, watched_source

__all__ = ["FailpointError", "arm", "failpoint", "known_failpoints", "watched", "watched_source"]
