"""What the ends of connections between workers in step are called."""

from __future__ import annotations

from stratagem._src.transport import Identity

__all__ = ["COUNCIL", "MEETING", "RELAY_ROLE", "WORKER_ROLE"]

MEETING = Identity("meeting")
COUNCIL = Identity("council")
WORKER_ROLE = "worker"
RELAY_ROLE = "relay"
