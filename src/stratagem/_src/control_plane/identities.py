"""The transport identities of the membership server, the elastic peers and the workers."""

from __future__ import annotations

from stratagem._src.transport import Identity

__all__ = ["MEMBERSHIP_SERVER", "PEER", "RELAY_ROLE", "WORKER_ROLE"]

MEMBERSHIP_SERVER = Identity("membership")
PEER = Identity("peer")
WORKER_ROLE = "worker"
RELAY_ROLE = "relay"
