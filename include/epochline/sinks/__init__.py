"""Sinks: what writing to a target means, in the commit's transaction."""
