"""Failpoints: places between two I/O calls at which a test kills, stops, delays or breaks its own process.

They are off unless ``EPOCHLINE_FAILPOINT`` names one. An installation with ``EPOCHLINE_FAILPOINTS=forbidden`` refuses
to run with a named one.
"""

from epochline.failpoints.calls import known_failpoints, watched, watched_source
from epochline.failpoints.named import FailpointError, arm, failpoint

__all__ = ["FailpointError", "arm", "failpoint", "known_failpoints", "watched", "watched_source"]
