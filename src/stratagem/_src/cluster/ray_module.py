"""Ray itself, where it is installed."""

from __future__ import annotations

from typing import Any

__all__ = ["load_ray"]


def load_ray(who: str) -> Any:
    """Returns the module ``ray``.

    Args:
        who: Who needs it, for the error.

    Raises:
        ImportError: If Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ImportError(f"{who} needs Ray. Run pip install 'stratagem[ray]'.") from None
    return ray
