"""The XLA custom calls that ``jax.export`` allows in files: JAX guarantees that their meaning is stable."""

from __future__ import annotations

__all__ = ["stable_custom_calls"]

# The custom calls that JAX itself generates in programs without linear algebra.
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
    """Returns the names of the custom calls that ``jax.export`` exports by default.

    If JAX has changed, only the few that any program may have: models with linear algebra are then
    rejected, instead of accepting every model.
    """
    try:
        from jax._src.export import _export

        return _ALWAYS | frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)
    except (ImportError, AttributeError, TypeError):
        return _ALWAYS
