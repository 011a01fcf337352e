"""`epochline drill`: a pipeline over a copy of its records, killed at each step, compared with an undisturbed run."""
