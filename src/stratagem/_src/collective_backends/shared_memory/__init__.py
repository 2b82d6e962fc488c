"""Collectives between workers on one host, through shared memory."""
