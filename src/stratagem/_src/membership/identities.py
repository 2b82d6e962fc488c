"""What the ends of connections to the meeting point are called."""

from __future__ import annotations

from stratagem._src.transport import Identity

__all__ = ["MEETING", "RELAY_ROLE", "WORKER_ROLE"]

MEETING = Identity("meeting")
WORKER_ROLE = "worker"
RELAY_ROLE = "relay"
