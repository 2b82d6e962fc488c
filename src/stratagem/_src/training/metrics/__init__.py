"""Metrics that accumulate over replicas and steps."""
