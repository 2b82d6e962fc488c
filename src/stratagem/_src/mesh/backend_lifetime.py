"""The lifetime of JAX's devices: it ends when the workers of an elastic job re-form.

Then the JAX backend restarts. Caches of anything that belongs to devices depend on it: through a weak
reference to the lifetime, which dies with the devices, or through a callback that clears the cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

__all__ = ["BackendLifetime", "backend_lifetime", "end_backend_lifetime", "when_backend_ends"]


class BackendLifetime:
    """The period during which the devices of this process stay the same."""


_lifetime = BackendLifetime()
_forgetting: list[Callable[[], None]] = []


def backend_lifetime() -> weakref.ref[BackendLifetime]:
    """Returns a weak reference that dies with the current devices."""
    return weakref.ref(_lifetime)


def when_backend_ends(forget: Callable[[], None]) -> Callable[[], None]:
    """Calls ``forget`` whenever the backend ends; returns it. For module-level caches."""
    _forgetting.append(forget)
    return forget


def end_backend_lifetime() -> None:
    """Clears the caches of the previous devices."""
    global _lifetime
    _lifetime = BackendLifetime()
    for forget in _forgetting:
        forget()
