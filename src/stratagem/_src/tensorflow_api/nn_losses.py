"""``tf.nn``: losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, AxisLike
from stratagem._src.tensorflow_api.conversion import as_tensor, axes_of, concrete, floats, matched

__all__ = [
    "l2_loss",
    "log_poisson_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]


def l2_loss(t: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns half the sum of the squared elements.

    >>> l2_loss([3.0, 4.0])
    Array(12.5, dtype=float32)
    """
    return jnp.sum(jnp.square(floats("nn.l2_loss", t, real=True))) / 2


def softmax_cross_entropy_with_logits(
    labels: ArrayLike, logits: ArrayLike, axis: AxisLike = -1, name: str | None = None
) -> jax.Array:
    """Returns the cross entropy between probabilities and the softmax of logits along an axis.

    JAX equivalent: ``optax.softmax_cross_entropy``.

    >>> softmax_cross_entropy_with_logits([[0.0, 1.0]], [[0.0, 0.0]])
    Array([0.6931472], dtype=float32)
    """
    scores, wanted = matched("nn.softmax_cross_entropy_with_logits", logits, labels)
    floats("nn.softmax_cross_entropy_with_logits", scores, real=True)
    [along] = axes_of("nn.softmax_cross_entropy_with_logits", axis, scores.ndim)
    return -jnp.sum(wanted * jax.nn.log_softmax(scores, along), along)


def sparse_softmax_cross_entropy_with_logits(
    labels: ArrayLike, logits: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns the cross entropy between classes and the softmax of logits along the last axis.

    A class out of range raises; a traced one gives NaN, as in TensorFlow on GPUs.

    JAX equivalent: ``optax.softmax_cross_entropy_with_integer_labels``.

    >>> sparse_softmax_cross_entropy_with_logits([1], [[0.0, 0.0]])
    Array([0.6931472], dtype=float32)
    """
    scores = floats("nn.sparse_softmax_cross_entropy_with_logits", logits, real=True)
    classes = as_tensor(labels)
    if classes.dtype.kind not in "iu" or classes.shape != scores.shape[:-1]:
        raise ValueError(
            f"labels must be integers of shape {scores.shape[:-1]}, got {classes.dtype.name} of shape "
            f"{classes.shape}. For probabilities use tf.nn.softmax_cross_entropy_with_logits."
        )
    values = concrete(labels)
    if (
        values is not None
        and values.size
        and (values.min() < 0 or values.max() >= scores.shape[-1])
    ):
        raise InvalidArgumentError(
            f"labels must be in [0, {scores.shape[-1]}), got {values.min()} to {values.max()}."
        )
    valid = (classes >= 0) & (classes < scores.shape[-1])
    rows = jnp.take_along_axis(
        jax.nn.log_softmax(scores), jnp.where(valid, classes, 0)[..., None], -1
    )[..., 0]
    return jnp.where(valid, -rows, jnp.nan)


def sigmoid_cross_entropy_with_logits(
    labels: ArrayLike = None, logits: ArrayLike = None, name: str | None = None
) -> jax.Array:
    """Returns the elementwise cross entropy between probabilities and the sigmoid of logits.

    JAX equivalent: ``optax.sigmoid_binary_cross_entropy``.

    >>> sigmoid_cross_entropy_with_logits([1.0], [0.0])
    Array([0.6931472], dtype=float32)
    """
    scores, wanted = matched("nn.sigmoid_cross_entropy_with_logits", logits, labels)
    _check_shapes(scores, wanted)
    # Not by abs and maximum: at 0, where training often starts, their gradients do not add up.
    positive = scores >= 0
    part = jnp.where(positive, scores, 0) - scores * wanted
    return part + jnp.log1p(jnp.exp(jnp.where(positive, -scores, scores)))


def weighted_cross_entropy_with_logits(
    labels: ArrayLike, logits: ArrayLike, pos_weight: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns ``sigmoid_cross_entropy_with_logits`` with positive labels weighted by ``pos_weight``.

    >>> weighted_cross_entropy_with_logits([1.0], [0.0], 2.0)
    Array([1.3862944], dtype=float32)
    """
    scores, wanted, weight = matched(
        "nn.weighted_cross_entropy_with_logits", logits, labels, pos_weight
    )
    _check_shapes(scores, wanted)
    factor = 1 + (weight - 1) * wanted
    return (1 - wanted) * scores + factor * jax.nn.softplus(-scores)


def log_poisson_loss(
    targets: ArrayLike,
    log_input: ArrayLike,
    compute_full_loss: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns ``exp(log_input) - log_input * targets``, optionally with Stirling's approximation.

    >>> log_poisson_loss([1.0], [0.0])
    Array([1.], dtype=float32)
    """
    rate, wanted = matched("nn.log_poisson_loss", log_input, targets)
    _check_shapes(rate, wanted)
    loss = jnp.exp(rate) - rate * wanted
    if compute_full_loss:
        safe = jnp.where(wanted > 1, wanted, 1)
        stirling = safe * jnp.log(safe) - safe + 0.5 * jnp.log(2 * np.pi * safe)
        loss = loss + jnp.where(wanted > 1, stirling, 0)
    return loss


def _check_shapes(scores: ArrayLike, labels: ArrayLike) -> None:
    if scores.shape != labels.shape:
        raise ValueError(
            f"logits and labels must have the same shape, got {scores.shape} and {labels.shape}."
        )
