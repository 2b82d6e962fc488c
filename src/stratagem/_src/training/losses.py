"""Per-replica losses, scaled so that their sum over the replicas is the loss of the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError, InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree, Tensor
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import operand_of

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def compute_average_loss(
    per_example_loss: ArrayLike,
    sample_weight: ArrayLike = None,
    global_batch_size: ArrayLike = None,
) -> Any:
    """Returns this replica's share of the average loss of the global batch.

    The losses of the replica's examples are summed and divided by the global batch size. An ``Optimizer``
    sums gradients over the replicas, so the result is the average over all examples, even if replicas have
    different numbers of them.

    Args:
        per_example_loss: A loss for each example; the first dimension is the batch.
        sample_weight: A weight for each example, for each value, or for all. Weights scale losses; they
            do not change the number of examples.
        global_batch_size: Number of examples in all replicas together. Default: the current number. In
            eager runs, where replicas may have different numbers, that default is an all-reduce, so every
            replica must call this function.

    Returns:
        A scalar of the losses' type; zero if the global batch is empty.

    Raises:
        ContextError: Without a ``global_batch_size`` outside of the replicas of a strategy.
        ShapeMismatchError: If there is no batch dimension, or the weights do not fit.
        InvalidArgumentError: If the global batch size is not a number of examples.

    Differs from tf.distribute: the default is the true number of examples, not this replica's number times
    the number of replicas, which weights the examples of a partial batch wrongly.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> batch = sg.data.Dataset.from_tensor_slices([1.0, 2.0, 6.0]).batch(3)
    >>> for losses in strategy.experimental_distribute_dataset(batch):
    ...     parts = strategy.run(sg.nn.compute_average_loss, args=(losses,))
    >>> float(strategy.reduce("SUM", parts))
    3.0
    """
    losses = jnp.asarray(operand_of(per_example_loss))
    if losses.ndim == 0:
        raise ShapeMismatchError(
            "per_example_loss must have a value for each example in its first dimension, got a scalar. "
            "Compute the loss without averaging it over the batch."
        )
    if not jnp.issubdtype(losses.dtype, jnp.inexact):
        losses = losses.astype(jnp.float32)
    num_examples, dtype = losses.shape[0], losses.dtype
    if sample_weight is not None:
        losses = losses * _weights(sample_weight, losses)
    # Sum in float32: sums overflow in half precision.
    total = jnp.sum(losses, dtype=jnp.promote_types(dtype, jnp.float32))
    size = _global_batch_size(global_batch_size, num_examples)
    if isinstance(size, int):
        return (total / size).astype(dtype) if size else jnp.zeros((), dtype)
    size = jnp.asarray(size).astype(total.dtype)
    return jnp.where(size == 0, 0, total / jnp.where(size == 0, 1, size)).astype(dtype)


def scale_regularization_loss(regularization_loss: PyTree) -> Any:
    """Returns this replica's share of a loss that does not depend on examples, such as weight decay.

    Every replica computes the same regularization loss, and gradients are summed over the replicas, so the
    loss is divided by the number of replicas.

    Args:
        regularization_loss: The loss, or a structure of losses, which are added.

    Raises:
        ContextError: Outside of the replicas of a strategy.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> parts = strategy.run(lambda: sg.nn.scale_regularization_loss([1.0, 2.0]))
    >>> float(strategy.reduce("SUM", parts))
    3.0
    """
    replica = _require_replica("scale_regularization_loss", "")
    losses = jax.tree.leaves(regularization_loss)
    total: Any = sum((jnp.sum(jnp.asarray(operand_of(loss))) for loss in losses), jnp.zeros(()))
    return total / replica.num_replicas_in_sync


def _global_batch_size(given: ArrayLike, num_examples: int) -> Any:
    if given is None:
        replica = _require_replica("compute_average_loss", ", or give global_batch_size")
        # In one SPMD program all replicas have the same shapes. Eager replicas may differ: all-reduce.
        if replica.num_replicas_in_sync == 1 or replica.replica_index is None:
            return num_examples * replica.num_replicas_in_sync
        return replica.all_reduce(ReduceOp.SUM, np.int32(num_examples))
    if isinstance(given, (bool, np.bool_)):
        raise InvalidArgumentError(f"global_batch_size must be a number of examples, got {given}.")
    if not isinstance(given, int):
        given = jnp.asarray(operand_of(given))
        if given.ndim or not jnp.issubdtype(given.dtype, jnp.integer):
            raise InvalidArgumentError(
                f"global_batch_size must be one integer, got {given.dtype.name}{list(given.shape)}."
            )
        if is_tracer(given):
            return given
    size = int(given)
    if size < 0:
        raise InvalidArgumentError(f"global_batch_size must not be negative, got {size}.")
    return size


def _require_replica(caller: str, otherwise: str) -> ReplicaContextProtocol:
    replica = context.get_replica_context()
    if replica is None:
        raise ContextError(
            f"{caller}() returns a replica's share of a loss, but this is cross-replica context. Call it "
            f"in the function given to strategy.run(){otherwise}."
        )
    return replica


def _weights(sample_weight: ArrayLike, losses: Tensor) -> Any:
    """Returns the weights in a shape that broadcasts with the losses."""
    weights = jnp.asarray(operand_of(sample_weight)).astype(losses.dtype)
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    shape = weights.shape
    if weights.ndim <= losses.ndim and (weights.ndim == 0 or _fit(shape, losses.shape)):
        return weights.reshape(shape + (1,) * (losses.ndim - weights.ndim)) if shape else weights
    raise ShapeMismatchError(
        "sample_weight must have a weight for each example, for each value, or one for all, got shape "
        f"{shape} for losses of shape {losses.shape}."
    )


def _fit(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(size in (1, other) for size, other in zip(shape, wanted, strict=False))
