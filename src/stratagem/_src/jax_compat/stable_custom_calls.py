"""The XLA custom calls that ``jax.export`` puts into files: JAX's own, of which it keeps the meaning."""

from __future__ import annotations

__all__ = ["stable_custom_calls"]

# What JAX itself puts into programs without linear algebra.
_ALWAYS = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "shape_assertion",
    }
)


def stable_custom_calls() -> frozenset[str]:
    """Returns the names of the custom calls that ``jax.export`` exports without being told to.

    Where JAX does not say, the few that any program may have: models with linear algebra are refused
    then, rather than any model accepted.
    """
    try:
        from jax._src.export import _export

        return _ALWAYS | frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)
    except (ImportError, AttributeError, TypeError):
        return _ALWAYS
