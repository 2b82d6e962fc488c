"""``tf.nn``: activation functions; some are also in ``tf.math``."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, AxisLike
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    floats,
    integer,
    is_float,
    numbers,
)

__all__ = [
    "crelu",
    "elu",
    "gelu",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
]


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def relu(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``max(x, 0)`` of each element.

    >>> relu([-1.0, 2.0])
    Array([0., 2.], dtype=float32)
    """
    return jax.nn.relu(numbers("nn.relu", features))


def relu6(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns each element, clipped to [0, 6].

    >>> relu6([-1.0, 7.0])
    Array([0., 6.], dtype=float32)
    """
    x = numbers("nn.relu6", features)
    # The gradient of clip at 0 and 6 is not TensorFlow's.
    return jax.nn.relu6(x) if is_float(x.dtype) else jnp.clip(x, 0, 6)


def crelu(features: ArrayLike, axis: AxisLike = -1, name: str | None = None) -> jax.Array:
    """Returns ``relu(x)`` and ``relu(-x)``, concatenated along an axis.

    >>> crelu([-1.0, 2.0])
    Array([0., 2., 1., 0.], dtype=float32)
    """
    x = numbers("nn.crelu", features)
    [along] = axes_of("nn.crelu", axis, x.ndim)
    return jax.nn.relu(jnp.concatenate([x, -x], along))


def leaky_relu(features: ArrayLike, alpha: float = 0.2, name: str | None = None) -> jax.Array:
    """Returns each element, with negative ones multiplied by ``alpha``.

    >>> leaky_relu([-1.0, 2.0])
    Array([-0.2,  2. ], dtype=float32)
    """
    x = numbers("nn.leaky_relu", features)
    if not is_float(x.dtype):
        x = x.astype(jnp.float32)
    return jnp.where(x > 0, x, x * jnp.asarray(alpha, x.dtype))


def elu(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the exponential linear unit: ``exp(x) - 1`` for negative elements, else ``x``.

    >>> elu([0.0, 2.0])
    Array([0., 2.], dtype=float32)
    """
    return jax.nn.elu(floats("nn.elu", features, real=True))


def selu(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the scaled exponential linear unit of each element.

    >>> selu([0.0])
    Array([0.], dtype=float32)
    """
    x = floats("nn.selu", features, real=True)
    # jax.nn.selu has the other slope at 0.
    return _SELU_SCALE * jnp.where(x < 0, _SELU_ALPHA * jnp.expm1(jnp.where(x < 0, x, 0)), x)


def gelu(features: ArrayLike, approximate: bool = False, name: str | None = None) -> jax.Array:
    """Returns the Gaussian error linear unit of each element.

    Args:
        features: An array of floats.
        approximate: Whether to use the ``tanh`` approximation.
        name: Ignored.

    >>> gelu([0.0, 1.0])
    Array([0.       , 0.8413447], dtype=float32)
    """
    x = as_tensor(features)
    if not is_float(x.dtype):
        raise ValueError(
            f"tf.nn.gelu needs floating-point numbers, got {x.dtype.name}. Use tf.cast."
        )
    return jax.nn.gelu(x, approximate=approximate)


def silu(features: ArrayLike, beta: float = 1.0) -> jax.Array:
    """Returns ``x * sigmoid(beta * x)``.

    >>> silu([0.0])
    Array([0.], dtype=float32)
    """
    x = floats("nn.silu", features)
    return x * jax.nn.sigmoid(jnp.asarray(beta, x.dtype) * x)


def swish(features: ArrayLike, beta: float = 1.0) -> jax.Array:
    """Returns ``x * sigmoid(beta * x)``.

    >>> swish([0.0])
    Array([0.], dtype=float32)
    """
    return silu(features, beta)


def softplus(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``log(exp(x) + 1)`` of each element.

    >>> softplus([0.0])
    Array([0.6931472], dtype=float32)
    """
    return jax.nn.softplus(floats("math.softplus", features, real=True))


def softsign(features: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / (abs(x) + 1)`` of each element.

    >>> softsign([1.0])
    Array([0.5], dtype=float32)
    """
    return jax.nn.soft_sign(floats("nn.softsign", features, real=True))


def softmax(logits: ArrayLike, axis: AxisLike = None, name: str | None = None) -> jax.Array:
    """Returns the softmax along an axis, the last by default.

    >>> softmax([0.0, 0.0])
    Array([0.5, 0.5], dtype=float32)
    """
    x = floats("nn.softmax", logits, real=True)
    return jax.nn.softmax(x, _axis("nn.softmax", axis, x))


def log_softmax(logits: ArrayLike, axis: AxisLike = None, name: str | None = None) -> jax.Array:
    """Returns the logarithm of ``softmax``.

    >>> log_softmax([0.0, 0.0])
    Array([-0.6931472, -0.6931472], dtype=float32)
    """
    x = floats("nn.log_softmax", logits, real=True)
    return jax.nn.log_softmax(x, _axis("nn.log_softmax", axis, x))


def _axis(op: str, axis: AxisLike, x: ArrayLike) -> int:
    if x.ndim == 0:
        raise InvalidArgumentError(f"tf.{op} needs at least one dimension, got a scalar.")
    return axes_of(op, -1 if axis is None else integer(op, "axis", axis), x.ndim)[0]
