"""JAX's coordination service, hosted by a process that does not load JAX itself."""

from __future__ import annotations

from typing import Any

__all__ = ["NO_TIMEOUT_SECONDS", "host_service"]

NO_TIMEOUT_SECONDS = 10**7
"""A timeout, in seconds, that never expires: the service and its clients declare no worker dead."""


def host_service(address: str, num_workers: int) -> Any | None:
    """Starts the service, which lives as long as the returned object; ``None`` if JAX has changed.

    It never declares a worker dead, because it would abort the others; the membership server does that.
    """
    try:
        from jaxlib import _jax

        return _jax.get_distributed_runtime_service(
            address,
            num_workers,
            heartbeat_timeout=NO_TIMEOUT_SECONDS,
            cluster_register_timeout=NO_TIMEOUT_SECONDS,
            recoverable=True,
        )
    except (ImportError, AttributeError, TypeError):
        return None
