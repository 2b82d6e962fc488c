"""Metrics: numbers about a run that add up over replicas and steps."""
