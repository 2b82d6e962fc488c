"""Sets the address on which XLA's CPU collectives (Gloo) listen for other processes.

XLA resolves the host name of the machine and listens on that address: 127.0.1.1 with the ``/etc/hosts`` of
Debian and Ubuntu, the first of several networks, or nothing at all. JAX has no setting for it, so we create
the backend with collectives of our own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import jax

from stratagem._src.jax_compat.xla_flags import raised_collective_timeouts

__all__ = ["gloo_listens_at"]


@contextlib.contextmanager
def gloo_listens_at(host: str | None) -> Iterator[None]:
    """Makes a CPU backend that starts in the block listen on an address of this machine.

    Does nothing for ``None``, with collectives other than Gloo, and if JAX has changed: XLA then listens on
    the address that the host name resolves to.
    """
    registry = _registry()
    if host is None or registry is None or not _uses_gloo():
        yield
        return
    before = registry["cpu"]
    registry["cpu"] = dataclasses.replace(before, factory=lambda: _make_client(host))
    try:
        yield
    finally:
        registry["cpu"] = before


def _registry() -> dict[str, Any] | None:
    try:
        bridge = importlib.import_module("jax._src.xla_bridge")
        registry, _ = bridge._backend_factories, bridge.make_cpu_client
    except (ImportError, AttributeError):
        return None
    registration = registry.get("cpu") if isinstance(registry, dict) else None
    is_known = dataclasses.is_dataclass(registration) and hasattr(registration, "factory")
    return registry if is_known else None


def _uses_gloo() -> bool:
    return getattr(jax.config, "jax_cpu_collectives_implementation", None) == "gloo"


def _make_client(host: str) -> Any:
    bridge = importlib.import_module("jax._src.xla_bridge")
    # The same flags as in the factory that this replaces. A worker that started alone before it joins keeps
    # these flags; with other flags here it would not find the programs that the others have compiled.
    with raised_collective_timeouts():
        return bridge.make_cpu_client(**_collectives(host))


def _collectives(host: str) -> dict[str, Any]:
    try:
        runtime = importlib.import_module("jaxlib._jax")
        client = importlib.import_module("jax._src.distributed").global_state.client
        if client is None:
            return {}
        return {
            "collectives": runtime.make_gloo_tcp_collectives(
                distributed_client=client, hostname=host
            )
        }
    except (ImportError, AttributeError, TypeError):
        return {}
