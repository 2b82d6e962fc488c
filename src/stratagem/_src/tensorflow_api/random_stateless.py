"""``tf.random.stateless_*``: random numbers determined by a seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, Seed, ShapeLike
from stratagem._src.tensorflow_api import random_samples as samples
from stratagem._src.tensorflow_api.conversion import as_tensor, shape_of
from stratagem._src.tensorflow_api.random_seeds import key_from_seed

__all__ = [
    "stateless_binomial",
    "stateless_categorical",
    "stateless_gamma",
    "stateless_normal",
    "stateless_parameterized_truncated_normal",
    "stateless_poisson",
    "stateless_shuffle",
    "stateless_truncated_normal",
    "stateless_uniform",
]


def stateless_normal(
    shape: ShapeLike,
    seed: Seed,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Returns samples of a normal distribution, determined by ``seed``.

    Differs from TensorFlow, like all ``stateless_*`` functions: the numbers come from JAX's threefry, and
    ``alg`` is ignored.

    Args:
        shape: The shape of the result.
        seed: Two integers, which may be traced.
        mean: The mean.
        stddev: The standard deviation.
        dtype: A floating-point dtype.
        name: Ignored.
        alg: Ignored.

    JAX equivalent: ``jax.random.normal``.

    >>> stateless_normal([3], seed=[1, 2]).shape
    (3,)
    """
    return samples.normal(key_from_seed("stateless_normal", seed), shape, mean, stddev, dtype)


def stateless_uniform(
    shape: ShapeLike,
    seed: Seed,
    minval: ArrayLike = 0,
    maxval: ArrayLike = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Returns uniform samples from ``[minval, maxval)``, determined by ``seed``.

    For integers, both may be ``None``: the samples then cover the full range of the dtype.

    >>> stateless_uniform([3], [1, 2], None, None, "uint32").shape
    (3,)
    """
    key = key_from_seed("stateless_uniform", seed)
    if minval is None:
        if maxval is not None:
            raise InvalidArgumentError(
                "minval and maxval of tf.random.stateless_uniform must both be None or both be numbers, "
                "got minval=None."
            )
        return samples.full_int(key, shape, dtype)
    return samples.uniform(key, shape, minval, maxval, dtype)


def stateless_truncated_normal(
    shape: ShapeLike,
    seed: Seed,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Returns samples of a normal distribution within two standard deviations of the mean.

    >>> bool((abs(stateless_truncated_normal([100], [1, 2])) <= 2).all())
    True
    """
    key = key_from_seed("stateless_truncated_normal", seed)
    return samples.truncated_normal(key, shape, mean, stddev, dtype)


def stateless_parameterized_truncated_normal(
    shape: ShapeLike,
    seed: Seed,
    means: ArrayLike = 0.0,
    stddevs: ArrayLike = 1.0,
    minvals: ArrayLike = -2.0,
    maxvals: ArrayLike = 2.0,
    name: str | None = None,
) -> jax.Array:
    """Returns samples of a normal distribution, truncated to ``[minvals, maxvals]``.

    >>> bool((stateless_parameterized_truncated_normal([100], [1, 2], minvals=0.0) >= 0).all())
    True
    """
    key = key_from_seed("stateless_parameterized_truncated_normal", seed)
    mean, stddev, lower, upper = map(as_tensor, (means, stddevs, minvals, maxvals))
    bounds = ((lower - mean) / stddev, (upper - mean) / stddev)
    return samples.truncated_normal(key, shape, mean, stddev, mean.dtype, bounds)


def stateless_categorical(
    logits: ArrayLike,
    num_samples: IntegerLike,
    seed: Seed,
    dtype: DTypeLike = "int64",
    name: str | None = None,
) -> jax.Array:
    """Returns ``num_samples`` class indices for each row of ``logits``.

    >>> stateless_categorical([[0.0, -100.0]], 3, [1, 2]).tolist()
    [[0, 0, 0]]
    """
    key = key_from_seed("stateless_categorical", seed)
    return samples.categorical(key, logits, num_samples, dtype)


def stateless_gamma(
    shape: ShapeLike,
    seed: Seed,
    alpha: ArrayLike,
    beta: ArrayLike = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Returns samples of gamma distributions.

    Args:
        shape: The shape of the result, which ends with the shape of ``alpha`` and ``beta``.
        seed: Two integers.
        alpha: The shape parameters.
        beta: The rate (inverse scale) parameters; default 1.
        dtype: A floating-point dtype.
        name: Ignored.

    >>> stateless_gamma([10, 2], [1, 2], [1.0, 2.0]).shape
    (10, 2)
    """
    key = key_from_seed("stateless_gamma", seed)
    outer = _without_last("stateless_gamma", shape, alpha, 1.0 if beta is None else beta)
    return samples.gamma(key, outer, alpha, beta, dtype)


def stateless_poisson(
    shape: ShapeLike,
    seed: Seed,
    lam: ArrayLike,
    dtype: DTypeLike = "int32",
    name: str | None = None,
) -> jax.Array:
    """Returns samples of Poisson distributions; ``shape`` ends with the shape of ``lam``.

    >>> stateless_poisson([10, 2], [1, 2], [1.0, 2.0]).shape
    (10, 2)
    """
    key = key_from_seed("stateless_poisson", seed)
    return samples.poisson(key, _without_last("stateless_poisson", shape, lam), lam, dtype)


def stateless_binomial(
    shape: ShapeLike,
    seed: Seed,
    counts: ArrayLike,
    probs: ArrayLike,
    output_dtype: DTypeLike = "int32",
    name: str | None = None,
) -> jax.Array:
    """Returns samples of binomial distributions with ``counts`` trials of probability ``probs``.

    >>> bool((stateless_binomial([10], [1, 2], 5.0, 0.5) <= 5).all())
    True
    """
    key = key_from_seed("stateless_binomial", seed)
    return samples.binomial(key, shape, counts, probs, output_dtype)


def stateless_shuffle(
    value: ArrayLike, seed: Seed, alg: object = "auto_select", name: str | None = None
) -> jax.Array:
    """Returns the rows of an array in random order, determined by ``seed``.

    >>> sorted(stateless_shuffle([3, 1, 2], [1, 2]).tolist())
    [1, 2, 3]
    """
    return samples.shuffle(key_from_seed("stateless_shuffle", seed), value)


def _without_last(op: str, shape: ShapeLike, *parameters: ArrayLike) -> tuple[int, ...]:
    """Returns ``shape`` without the last sizes, which must be those of the parameters."""
    size = shape_of(f"random.{op}", shape)
    inner = jnp.broadcast_shapes(*(as_tensor(parameter).shape for parameter in parameters))
    if inner and size[len(size) - len(inner) :] != inner:
        raise InvalidArgumentError(
            f"shape of tf.random.{op} must end with {inner}, the shape of the parameters, got {size}."
        )
    return size[: len(size) - len(inner)]
