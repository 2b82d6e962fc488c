"""Profiling: one timeline of all tasks of a job."""
