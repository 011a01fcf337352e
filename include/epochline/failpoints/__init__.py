"""Failpoints: places between two I/O calls at which a test kills, stops, delays or breaks its own process (F1).

They are off unless ``EPOCHLINE_FAILPOINT`` names one. An installation with ``EPOCHLINE_FAILPOINTS=forbidden`` refuses
to run with a named one.
"""

from epochline.failpoints.named import FailpointError, arm, failpoint
from epochline.failpoints.sites import known_failpoints
from epochline.failpoints.watched import watched, watched_source

__all__ = ["FailpointError", "arm", "failpoint", "known_failpoints", "watched", "watched_source"]
