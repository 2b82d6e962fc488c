"""``tf.random``: random numbers that differ in each call, step and replica, and dropout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.types import (
    ArrayLike,
    DTypeLike,
    IntegerLike,
    PRNGKey,
    ScalarLike,
    Seed,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api import random_samples as samples
from stratagem._src.tensorflow_api.conversion import concrete, floats, shape_of
from stratagem._src.tensorflow_api.random_seeds import next_key

__all__ = [
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "poisson",
    "random_normal_initializer",
    "random_uniform_initializer",
    "shuffle",
    "truncated_normal",
    "uniform",
]


def normal(
    shape: ShapeLike,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = "float32",
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns samples of a normal distribution, different in each call, step and replica.

    Args:
        shape: The shape of the result.
        mean: The mean; it must broadcast to the shape.
        stddev: The standard deviation; it must broadcast to the shape.
        dtype: A floating-point dtype.
        seed: Draws from the stream of this seed, which is the same in each run of the program.
        name: Ignored.

    >>> normal([2, 3]).shape
    (2, 3)
    """
    return samples.normal(next_key(seed), shape, mean, stddev, dtype)


def uniform(
    shape: ShapeLike,
    minval: ArrayLike = 0,
    maxval: ArrayLike = None,
    dtype: DTypeLike = "float32",
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns uniform samples from ``[minval, maxval)``, different in each call, step and replica.

    Args:
        shape: The shape of the result.
        minval: The lower bound, inclusive.
        maxval: The upper bound, exclusive; default 1 for floating-point dtypes, required for integers.
        dtype: A floating-point or integer dtype.
        seed: As for ``normal``.
        name: Ignored.

    >>> dice = uniform([100], 1, 7, dtype="int32")
    >>> bool((dice >= 1).all() and (dice <= 6).all())
    True
    """
    return samples.uniform(next_key(seed), shape, minval, maxval, dtype)


def truncated_normal(
    shape: ShapeLike,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = "float32",
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns samples of a normal distribution within two standard deviations of the mean.

    >>> bool((abs(truncated_normal([100])) <= 2).all())
    True
    """
    return samples.truncated_normal(next_key(seed), shape, mean, stddev, dtype)


def categorical(
    logits: ArrayLike,
    num_samples: IntegerLike,
    dtype: DTypeLike = None,
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns ``num_samples`` class indices for each row of ``logits``.

    Args:
        logits: Unnormalized log-probabilities of shape ``[rows, classes]``.
        num_samples: The number of samples for each row.
        dtype: An integer dtype, default ``int64``.
        seed: As for ``normal``.
        name: Ignored.

    >>> categorical([[0.0, -100.0], [-100.0, 0.0]], 2).tolist()
    [[0, 0], [1, 1]]
    """
    return samples.categorical(next_key(seed), logits, num_samples, dtype)


def gamma(
    shape: ShapeLike,
    alpha: ArrayLike,
    beta: ArrayLike = None,
    dtype: DTypeLike = "float32",
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns samples of gamma distributions: an array of shape ``shape`` for each ``alpha`` and ``beta``.

    >>> gamma([10], [1.0, 2.0]).shape
    (10, 2)
    """
    return samples.gamma(next_key(seed), shape, alpha, beta, dtype)


def poisson(
    shape: ShapeLike,
    lam: ArrayLike,
    dtype: DTypeLike = "float32",
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Returns samples of Poisson distributions: an array of shape ``shape`` for each ``lam``.

    >>> poisson([10], [1.0, 2.0]).shape
    (10, 2)
    """
    return samples.poisson(next_key(seed), shape, lam, dtype)


def shuffle(value: ArrayLike, seed: Seed = None, name: str | None = None) -> jax.Array:
    """Returns the rows of an array in random order.

    >>> sorted(shuffle([3, 1, 2]).tolist())
    [1, 2, 3]
    """
    return samples.shuffle(next_key(seed), value)


def dropout(
    x: ArrayLike,
    rate: ScalarLike,
    noise_shape: ShapeLike = None,
    seed: Seed = None,
    name: str | None = None,
) -> jax.Array:
    """Sets random elements to zero, and divides the others by ``1 - rate``.

    Args:
        x: An array of floating-point numbers.
        rate: The probability of zero, in ``[0, 1)``.
        noise_shape: The shape of the mask, which must broadcast to that of ``x``; ``None`` stands for the
            size of ``x``. Elements that share a mask element are set to zero together.
        seed: As for ``tf.random.normal``.
        name: Ignored.

    >>> sorted(set(dropout(jnp.ones(100), 0.5).tolist()))
    [0.0, 2.0]
    """
    array = floats("nn.dropout", x)
    if _is_zero(rate):
        return array
    return _dropped(next_key(seed), array, rate, noise_shape)


def _is_zero(rate: ScalarLike) -> bool:
    value = concrete(rate)
    if value is None:
        return False
    if not 0 <= value < 1:
        raise InvalidArgumentError(f"rate of tf.nn.dropout must be in [0, 1), got {rate!r}.")
    return bool(value == 0)


def _dropped(key: PRNGKey, array: Tensor, rate: ScalarLike, noise_shape: ShapeLike) -> jax.Array:
    shape = array.shape
    if noise_shape is not None:
        given = list(noise_shape)
        if len(given) != len(shape):
            raise ShapeMismatchError(
                f"noise_shape of tf.nn.dropout must have a size for each dimension of {shape}, got {given}."
            )
        sizes = [old if new is None else new for new, old in zip(given, shape, strict=True)]
        shape = shape_of("nn.dropout", sizes)
    rate = jnp.asarray(rate, array.dtype)
    keeps = jax.random.uniform(key, shape, array.dtype) >= rate
    return jnp.where(keeps, array / (1 - rate), jnp.zeros((), array.dtype))


class random_normal_initializer:  # noqa: N801  (TensorFlow's name)
    """Creates initial values from a normal distribution.

    Args:
        mean: The mean.
        stddev: The standard deviation.
        seed: Draws from the stream of this seed.

    >>> random_normal_initializer()([2, 3]).shape
    (2, 3)
    """

    def __init__(self, mean: ArrayLike = 0.0, stddev: ArrayLike = 0.05, seed: Seed = None) -> None:
        self._arguments = (mean, stddev)
        self._seed = seed

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = "float32", **kwargs: Any) -> jax.Array:
        return normal(shape, *self._arguments, dtype=dtype, seed=self._seed)


class random_uniform_initializer:  # noqa: N801  (TensorFlow's name)
    """Creates initial values from a uniform distribution over ``[minval, maxval)``.

    Args:
        minval: The lower bound, inclusive.
        maxval: The upper bound, exclusive.
        seed: Draws from the stream of this seed.

    >>> random_uniform_initializer()([2, 3]).shape
    (2, 3)
    """

    def __init__(
        self, minval: ArrayLike = -0.05, maxval: ArrayLike = 0.05, seed: Seed = None
    ) -> None:
        self._arguments = (minval, maxval)
        self._seed = seed

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = "float32", **kwargs: Any) -> jax.Array:
        return uniform(shape, *self._arguments, dtype=dtype, seed=self._seed)
