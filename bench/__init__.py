"""Measurements: everything that is said about speed comes from here, side by side in one run."""
