"""Example programs with Epochline, and plain programs that show what goes wrong without it."""
