"""Broadcasting of values and sample weights to one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.values.array_operators import operand_of

__all__ = ["as_array", "per_sample", "same_rank", "same_shape"]


def as_array(value: ArrayLike, dtype: DTypeLike = None) -> Any:
    """Returns a value, which may be a variable or a list, as an array."""
    return jnp.asarray(operand_of(value), dtype)


def same_rank(
    first: ArrayLike, second: ArrayLike, *, expand_vectors: bool = True
) -> tuple[Any, Any]:
    """Returns two arrays of equal rank if they differ by a last dimension of size one.

    Args:
        first: An array.
        second: Another.
        expand_vectors: Whether a vector gets a last dimension rather than the other losing its own.
    """
    if first.ndim == second.ndim + 1 and first.shape[-1] == 1:
        if second.ndim == 1 and expand_vectors:
            return first, second[..., None]
        return first[..., 0], second
    if second.ndim == first.ndim + 1 and second.shape[-1] == 1:
        if first.ndim == 1 and expand_vectors:
            return first[..., None], second
        return first, second[..., 0]
    return first, second


def same_shape(metric: str, labels: ArrayLike, predictions: ArrayLike) -> tuple[Any, Any]:
    """Returns labels and predictions as arrays of one shape.

    Raises:
        ShapeMismatchError: If their shapes differ; broadcasting would count nonexistent samples.
    """
    labels, predictions = same_rank(as_array(labels), as_array(predictions))
    if labels.shape != predictions.shape:
        raise ShapeMismatchError(
            f"{metric} needs y_true and y_pred of the same shape, got {labels.shape} and "
            f"{predictions.shape}."
        )
    return labels, predictions


def per_sample(
    metric: str,
    values: ArrayLike,
    sample_weight: ArrayLike,
    combine: Callable[..., Any],
    dtype: np.dtype[Any],
) -> tuple[Any, Any]:
    """Returns one weighted value for each sample, and its weight.

    Args:
        metric: The metric's name, for messages.
        values: Array whose first dimension counts samples; other dimensions are combined. A scalar is
            one sample.
        sample_weight: A weight for each sample, or for each of its values; a number for all; ``None``.
        combine: ``jnp.mean`` or ``jnp.sum``.
        dtype: Element type of the results.

    Returns:
        The weighted values, and the weights, which are ``None`` if none were given.

    Raises:
        ShapeMismatchError: If the weights do not fit the values.
    """
    values = as_array(values).astype(dtype)
    weight = None
    if sample_weight is not None:
        given = as_array(sample_weight).astype(dtype)
        values, weight = same_rank(values, given)
        if weight.ndim > values.ndim or any(
            size not in (1, wanted)
            for size, wanted in zip(weight.shape, values.shape, strict=False)
        ):
            raise ShapeMismatchError(
                f"Metric {metric!r} needs one sample_weight for each sample, for each value, or for all, "
                f"got shape {given.shape} for values of shape {values.shape}."
            )
        if values.ndim > weight.ndim:
            values = combine(values, axis=tuple(range(weight.ndim, values.ndim)))
        weight = jnp.broadcast_to(weight, values.shape)
        values = values * weight
        if weight.ndim > 1:
            weight = combine(weight, axis=tuple(range(1, weight.ndim)))
    if values.ndim > 1:
        values = combine(values, axis=tuple(range(1, values.ndim)))
    return values, weight
