"""How long JAX's devices last: until the workers of a job form anew, which ends the backend.

Whatever is made for devices and kept for later depends on it: by a weak reference to the lifetime, which
goes when they do, or by a function that forgets it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

__all__ = ["BackendLifetime", "backend_lifetime", "end_backend_lifetime", "when_backend_ends"]


class BackendLifetime:
    """The time for which the devices of this process are the ones they are."""


_lifetime = BackendLifetime()
_forgetting: list[Callable[[], None]] = []


def backend_lifetime() -> weakref.ref[BackendLifetime]:
    """Returns a reference that is dead when the devices of now are gone."""
    return weakref.ref(_lifetime)


def when_backend_ends(forget: Callable[[], None]) -> Callable[[], None]:
    """Has ``forget`` called whenever the devices go; returns it. For caches of modules."""
    _forgetting.append(forget)
    return forget


def end_backend_lifetime() -> None:
    """Forgets what was made for the devices of before."""
    global _lifetime
    _lifetime = BackendLifetime()
    for forget in _forgetting:
        forget()
