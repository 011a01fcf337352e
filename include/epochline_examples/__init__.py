"""Example programs, and what shows without Epochline what goes wrong without it."""
