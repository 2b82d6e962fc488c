"""Samples of distributions for a PRNG key, with TensorFlow's arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, PRNGKey, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    canonical_dtype,
    concrete,
    integer,
    is_float,
    shape_of,
)

__all__ = [
    "binomial",
    "categorical",
    "full_int",
    "gamma",
    "normal",
    "poisson",
    "shuffle",
    "truncated_normal",
    "uniform",
]


def normal(
    key: PRNGKey, shape: ShapeLike, mean: ArrayLike, stddev: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Returns samples of a normal distribution."""
    dtype = _float("normal", dtype)
    sample = jax.random.normal(key, shape_of("random.normal", shape), dtype)
    return sample * _like(stddev, dtype) + _like(mean, dtype)


def truncated_normal(
    key: PRNGKey,
    shape: ShapeLike,
    mean: ArrayLike,
    stddev: ArrayLike,
    dtype: DTypeLike,
    bounds: tuple[Any, Any] = (-2, 2),
) -> jax.Array:
    """Returns samples of a normal distribution, truncated to ``bounds`` standard deviations."""
    dtype = _float("truncated_normal", dtype)
    lower, upper = (_like(bound, dtype) for bound in bounds)
    size = shape_of("random.truncated_normal", shape)
    sample = jax.random.truncated_normal(key, lower, upper, size, dtype)
    return sample * _like(stddev, dtype) + _like(mean, dtype)


def uniform(
    key: PRNGKey, shape: ShapeLike, minval: ArrayLike, maxval: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Returns uniform samples from ``[minval, maxval)``."""
    wanted = as_dtype(dtype)
    size = shape_of("random.uniform", shape)
    if is_float(wanted):
        dtype = canonical_dtype(wanted)
        low, high = _like(minval, dtype), _like(1 if maxval is None else maxval, dtype)
        return jax.random.uniform(key, size, dtype) * (high - low) + low
    if wanted.kind not in "iu":
        raise InvalidArgumentError(
            f"tf.random.uniform needs a floating-point or integer dtype, got {wanted}."
        )
    if maxval is None:
        raise InvalidArgumentError(f"tf.random.uniform of {wanted} needs maxval, got None.")
    low, high = concrete(minval), concrete(maxval)
    if low is not None and high is not None and (low >= high).any():
        raise InvalidArgumentError(
            f"tf.random.uniform needs minval < maxval, got {minval!r} and {maxval!r}."
        )
    return jax.random.randint(
        key, size, as_tensor(minval), as_tensor(maxval), dtype=canonical_dtype(wanted)
    )


def full_int(key: PRNGKey, shape: ShapeLike, dtype: DTypeLike) -> jax.Array:
    """Returns uniform integers over the full range of the dtype."""
    size, dtype = shape_of("random.uniform", shape), canonical_dtype(dtype)
    if dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"A uniform distribution over the full range needs an integer dtype, got {dtype}."
        )
    unsigned = jnp.dtype(f"uint{8 * dtype.itemsize}")
    return jax.random.bits(key, size, unsigned).astype(dtype)


def categorical(
    key: PRNGKey, logits: ArrayLike, num_samples: IntegerLike, dtype: DTypeLike
) -> jax.Array:
    """Returns ``num_samples`` class indices for each row of ``logits``."""
    array = as_tensor(logits)
    if array.ndim != 2:
        raise ShapeMismatchError(
            f"tf.random.categorical needs logits of shape [rows, classes], got {tuple(array.shape)}."
        )
    count = integer("random.categorical", "num_samples", num_samples)
    found = jax.random.categorical(key, array, axis=-1, shape=(count, array.shape[0]))
    return found.T.astype(canonical_dtype("int64" if dtype is None else dtype))


def gamma(
    key: PRNGKey, shape: ShapeLike, alpha: ArrayLike, beta: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Returns samples of gamma distributions: ``shape`` of them for each ``alpha`` and ``beta``."""
    dtype = _float("gamma", dtype)
    scale = _like(1 if beta is None else beta, dtype)
    concentration, scale = jnp.broadcast_arrays(_like(alpha, dtype), scale)
    size = (*shape_of("random.gamma", shape), *concentration.shape)
    sample = jax.random.gamma(key, concentration, size, dtype) / scale
    # As in TensorFlow, samples are never zero, so that their logarithm is finite.
    return jnp.maximum(sample, jnp.finfo(dtype).tiny)


def poisson(key: PRNGKey, shape: ShapeLike, lam: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Returns samples of Poisson distributions: an array of shape ``shape`` for each ``lam``."""
    rate = as_tensor(lam)
    rate = rate if is_float(rate.dtype) else rate.astype(jnp.float32)
    size = (*shape_of("random.poisson", shape), *rate.shape)
    return jax.random.poisson(key, rate, size).astype(canonical_dtype(dtype))


def binomial(
    key: PRNGKey, shape: ShapeLike, counts: ArrayLike, probs: ArrayLike, dtype: DTypeLike
) -> jax.Array:
    """Returns samples of binomial distributions."""
    probability = as_tensor(probs)
    number = as_tensor(counts).astype(probability.dtype)
    size = shape_of("random.binomial", shape)
    return jax.random.binomial(key, number, probability, size).astype(canonical_dtype(dtype))


def shuffle(key: PRNGKey, value: ArrayLike) -> jax.Array:
    """Returns the rows in random order."""
    return jax.random.permutation(key, as_tensor(value), axis=0)


def _float(op: str, dtype: DTypeLike) -> DTypeLike:
    wanted = as_dtype(dtype)
    if not is_float(wanted):
        raise InvalidArgumentError(f"tf.random.{op} needs a floating-point dtype, got {wanted}.")
    return canonical_dtype(wanted)


def _like(value: ArrayLike, dtype: DTypeLike) -> Tensor:
    return as_tensor(value).astype(dtype)
