"""Collectives between workers on several hosts: TCP between hosts, shared memory within a host."""
