"""The arithmetic of ``GradientTape``: weights of targets, sums over reads, rows of a Jacobian."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import (
    InvalidArgumentError,
    ShapeMismatchError,
)
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import Leaf, PyTree, Tensor
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.values.array_operators import array_of
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.shard_gradients import add_gradients, shard_gradient
from stratagem._src.variables.variable import Variable

__all__ = [
    "GradientFunction",
    "UnconnectedGradients",
    "conjugate",
    "is_source",
    "jacobian_rows",
    "note_gradient_sum",
    "note_loss",
    "source_gradient",
    "table_of",
    "target_weights",
]


GradientFunction = Callable[[Sequence[Any]], list[Any]]
"""From one weight (cotangent) per target to one gradient per source, ``None`` where unconnected."""


_OfRead = tuple[Any | None, Any]
"""The gradient with respect to what was read, and the rows that were read; ``None`` if all."""


class UnconnectedGradients(enum.Enum):
    """What ``GradientTape.gradient`` returns for sources that the target does not depend on.

    >>> UnconnectedGradients("zero")
    <UnconnectedGradients.ZERO: 'zero'>
    """

    NONE = "none"
    ZERO = "zero"


def is_source(value: Leaf) -> bool:
    """Returns whether ``value`` is a leaf in structures of targets and sources."""
    return is_variable(value) or isinstance(value, (structures.ValueLeaf, IndexedSlices))


def target_weights(targets: Sequence[Any], output_gradients: PyTree) -> list[Tensor]:
    """Returns the weight of each target: ``output_gradients``, or ones."""
    values = [array_of(variable_of(target)) for target in targets]
    shapes = [(tuple(np.shape(value)), jnp.result_type(value)) for value in values]
    if output_gradients is None:
        return [jnp.ones(shape, dtype) for shape, dtype in shapes]
    given, _ = structures.flatten(output_gradients, lambda x: x is None or is_source(x))
    if len(given) != len(targets):
        raise InvalidArgumentError(
            f"GradientTape.gradient() needs one output_gradient per target, got {len(given)} for "
            f"{len(targets)}."
        )
    weights = []
    for weight, (shape, dtype) in zip(given, shapes, strict=True):
        made = jnp.ones(shape, dtype) if weight is None else jnp.asarray(array_of(weight), dtype)
        if made.shape != shape:
            raise ShapeMismatchError(
                "GradientTape.gradient() needs output_gradients with the shapes of the targets, got "
                f"{made.shape} for {shape}."
            )
        weights.append(made)
    return weights


def table_of(source: Leaf) -> BaseRemoteVariable | None:
    """Returns the variable that a source is a shard of; ``None`` if it is not a shard."""
    variable = variable_of(source) if is_variable(source) else None
    return variable.table if isinstance(variable, BaseRemoteVariable) else None


def source_gradient(
    source: Leaf,
    found: Sequence[_OfRead],
    unconnected: UnconnectedGradients,
    of_table: Sequence[_OfRead] = (),
) -> PyTree:
    """Returns the gradient of a source: the sum over its reads.

    Args:
        source: The source.
        found: The gradient of each read.
        unconnected: What to return if there is none.
        of_table: The gradient of each read of the variable that the source is a shard of.
    """
    variable = variable_of(source) if is_variable(source) else None
    total = _sum_over_reads(variable, found)
    if of_table:
        assert isinstance(variable, BaseRemoteVariable)
        of_shard = shard_gradient(_sum_over_reads(variable.table, of_table), variable)
        total = add_gradients(total, of_shard)
    if total is not None or unconnected is UnconnectedGradients.NONE:
        return total
    like = array_of(source) if variable is None else variable
    return jnp.zeros(tuple(like.shape), like.dtype)


def _sum_over_reads(variable: Variable | None, found: Sequence[_OfRead]) -> Any:
    there = [(gradient, indices) for gradient, indices in found if gradient is not None]
    if not there:
        return None
    dense = [gradient for gradient, indices in there if indices is None]
    total = functools.reduce(jnp.add, dense) if dense else None
    if total is not None and variable is not None:
        total = total.reshape(tuple(variable.shape))
    by_rows = [(gradient, indices) for gradient, indices in there if indices is not None]
    if not by_rows:
        return total
    assert isinstance(variable, BaseRemoteVariable)
    shape = variable.program_shape
    values = [jnp.reshape(gradient, (-1, *shape[1:])) for gradient, _ in by_rows]
    indices = [jnp.reshape(jnp.asarray(numbers), -1) for _, numbers in by_rows]
    rows = IndexedSlices(jnp.concatenate(values), jnp.concatenate(indices), dense_shape=shape)
    return rows if total is None else total + rows.to_dense()


def note_loss(loss: Tensor, gradients: Sequence[Any | None]) -> None:
    """Tells the replica's frame which loss the gradients are of."""
    frame = frames.current_frame()
    if isinstance(frame, ReplicaFrame):
        frame.note_loss(loss, gradients)


def note_gradient_sum(gradient: PyTree, parts: Sequence[Any | None]) -> None:
    """Tells the replica's frame which shard of the all-reduced gradient it already has, if any."""
    frame = frames.current_frame()
    if gradient is None or not parts or not isinstance(frame, ReplicaFrame):
        return
    there = [part for part in parts if part is not None]
    if len(there) == len(parts):
        frame.note_reduced_shard(gradient, functools.reduce(jnp.add, there))


def jacobian_rows(
    gradients: GradientFunction, basis: Tensor, *, at_once: bool
) -> list[Tensor | None]:
    """Returns the gradients of each source, stacked over the rows of ``basis`` as target weights."""
    connected: list[bool] = []

    def row(weight: Tensor) -> list[Tensor]:
        found = gradients([weight])
        connected[:] = [gradient is not None for gradient in found]
        present = [gradient for gradient in found if gradient is not None]
        return [g.to_dense() if isinstance(g, IndexedSlices) else g for g in present]

    if not len(basis):
        empty = row(jnp.zeros(basis.shape[1:], basis.dtype))
        made = [jnp.zeros((0, *gradient.shape), gradient.dtype) for gradient in empty]
    elif at_once:
        made = jax.vmap(row)(basis)
    else:
        made = [jnp.stack(rows) for rows in zip(*map(row, basis), strict=True)]
    remaining = iter(made)
    return [next(remaining) if there else None for there in connected]


def conjugate(value: Any | None) -> Tensor | None:
    """Returns the complex conjugate: TensorFlow's gradients are the conjugates of JAX's."""
    if value is None or not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return value
    return jnp.conj(value)
