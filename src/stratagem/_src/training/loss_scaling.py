"""``LossScale``: loss scaling for half (mixed) precision, which keeps gradients from underflowing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Tensor

__all__ = ["LossScale", "all_finite"]

_INITIAL_DYNAMIC = 2.0**15
_MIN_SCALE = 2.0**-14


@dataclass(frozen=True, slots=True)
class LossScale:
    """The factor by which a loss is multiplied before it is differentiated.

    Attributes:
        initial: The initial factor.
        dynamic: Whether it is halved when gradients are not finite, and doubled after ``growth_steps``
            finite steps.
        growth_steps: Number of finite steps after which it is doubled.
    """

    initial: float
    dynamic: bool
    growth_steps: int = 2000

    @classmethod
    def of(cls, given: float | str) -> LossScale:
        """Returns the loss scale for ``"dynamic"`` or a number.

        Raises:
            InvalidArgumentError: If it is something else.
        """
        if given == "dynamic":
            return cls(_INITIAL_DYNAMIC, dynamic=True)
        if isinstance(given, str) or not given > 0:
            raise InvalidArgumentError(
                f"loss_scale must be 'dynamic' or a positive number, got {given!r}."
            )
        return cls(float(given), dynamic=False)

    def after_finite(self, scale: Tensor, steps: Tensor) -> tuple[Any, Any]:
        """Returns the next factor and the number of finite steps in a row."""
        grows = steps + 1 >= self.growth_steps
        # An infinite factor could never shrink again.
        larger = jnp.where(jnp.isfinite(scale * 2), scale * 2, scale)
        return jnp.where(grows, larger, scale), jnp.where(grows, 0, steps + 1)

    def after_overflow(self, scale: Tensor, steps: Tensor) -> tuple[Any, Any]:
        """Returns the next factor, and zero finite steps."""
        return jnp.maximum(scale / 2, _MIN_SCALE), jnp.zeros_like(steps)


def all_finite(gradients: Sequence[Any]) -> Any:
    """Returns whether every element of every gradient is a finite number."""
    finite = jnp.ones((), bool)
    for gradient in gradients:
        finite &= jnp.all(jnp.isfinite(gradient))
    return finite
