"""Exchanges arrays between workers on several hosts, and within a host through shared memory."""
