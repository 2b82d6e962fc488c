"""``load_ray``: imports Ray, which is an optional dependency."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.extras import install_hint

__all__ = ["load_ray"]


def load_ray(who: str) -> Any:
    """Returns the module ``ray``.

    Args:
        who: The feature that needs Ray, for the error.

    Raises:
        ImportError: If Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ImportError(f"{who} needs Ray. {install_hint('ray')}") from None
    return ray
