"""JAX's coordination service, hosted by a process that does not load JAX itself."""

from __future__ import annotations

from typing import Any

__all__ = ["NEVER", "host_service"]

NEVER = 10**7
"""Seconds after which the service or a client takes another one for dead."""


def host_service(address: str, num_workers: int) -> Any | None:
    """Starts the service, which lives as long as what is returned; ``None`` where JAX has changed.

    It never takes a worker for dead: that is for the meeting point to say, because the service would
    abort the rest.
    """
    try:
        from jaxlib import _jax

        return _jax.get_distributed_runtime_service(
            address,
            num_workers,
            heartbeat_timeout=NEVER,
            cluster_register_timeout=NEVER,
            recoverable=True,
        )
    except (ImportError, AttributeError, TypeError):
        return None
