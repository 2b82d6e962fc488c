"""Validation and conversion of the gradients and variables that are passed to an ``Optimizer``."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError, VariableError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.fully_sharded_variable import ShardedOperand
from stratagem._src.variables.path_names import name_by_path
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = [
    "check_distinct",
    "dense_gradient",
    "flatten_variables",
    "gradient_arrays",
    "gradients_like",
    "split_pairs",
]


def split_pairs(grads_and_vars: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Variable]]:
    """Returns gradients and their variables; skips pairs without a gradient (``None``).

    Raises:
        VariableError: If an item is not a pair, a variable has two gradients, or none has one.
        ShapeMismatchError: If a gradient has another shape than its variable.
        InvalidArgumentError: If it is complex and the variable is not.
    """
    gradients, variables = [], []
    without: list[str] = []
    for pair in grads_and_vars:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise VariableError(
                f"apply_gradients takes (gradient, variable) pairs, got {type(pair).__name__} for a pair. "
                "Write apply_gradients(zip(gradients, variables)), or apply(gradients, variables)."
            )
        gradient, variable = pair[0], variable_of(pair[1])
        if gradient is None:
            without.append(getattr(variable, "name", type(variable).__name__))
            continue
        if not is_own_variable(variable):
            swapped = is_own_variable(variable_of(gradient))
            raise VariableError(
                "apply_gradients takes (gradient, variable) pairs, got "
                f"{type(variable).__name__} for a variable."
                f"{' The gradient comes first.' if swapped else ''}"
            )
        _check_shape(gradient, variable)
        _check_is_real(gradient, variable)
        gradients.append(gradient)
        variables.append(variable)
    if without and not variables:
        raise VariableError(
            "apply_gradients needs a gradient for at least one variable, got None for all of them: "
            f"{', '.join(map(repr, without[:3]))}{', ...' if len(without) > 3 else ''}. The loss does not "
            "depend on them: compute it from these variables, inside the tape's block."
        )
    check_distinct(variables)
    return gradients, variables


def _check_shape(gradient: ArrayLike, variable: Variable) -> None:
    shape = tuple(dim or 0 for dim in variable.shape)
    if isinstance(gradient, IndexedSlices):
        rows, received = np.shape(array_of(gradient.indices)), np.shape(array_of(gradient.values))
        if len(rows) != 1 or not shape or received != (*rows, *shape[1:]):
            raise ShapeMismatchError(
                f"An IndexedSlices gradient of {variable.name!r} of shape {shape} must have a vector of "
                f"indices and one row for each index, got indices of shape {rows} and values of shape "
                f"{received}."
            )
        return
    value = array_of(gradient)
    if isinstance(value, (PerReplica, ShardedOperand)):
        return  # checked in each replica
    if np.shape(value) != shape:
        raise ShapeMismatchError(
            f"A gradient must have the shape of its variable, got {np.shape(value)} for {variable.name!r} "
            f"of shape {shape}. Pass the gradient that value_and_grad returns for the variable, or use "
            "jnp.broadcast_to if one number is meant for all elements."
        )


def _check_is_real(gradient: ArrayLike, variable: Variable) -> None:
    value = array_of(gradient.values if isinstance(gradient, IndexedSlices) else gradient)
    is_complex = np.issubdtype(getattr(value, "dtype", np.float32), np.complexfloating)
    if is_complex and not np.issubdtype(variable.dtype, np.complexfloating):
        raise InvalidArgumentError(
            f"The gradient of {variable.name!r}, which is {np.dtype(variable.dtype).name}, must be real, "
            f"got {value.dtype.name}: its imaginary part would be dropped. Pass its jnp.real if that is "
            "intended."
        )


def gradients_like(variables: PyTree, gradients: PyTree) -> list[Any]:
    """Returns the gradient of each variable of a structure, ``None`` included.

    A ``None`` in both structures is no gradient but a place without a variable, as Equinox and others leave
    it in a partitioned module.

    Raises:
        VariableError: If the structures differ.
    """
    places, form = structures.flatten(variables, is_leaf=lambda x: x is None or is_variable(x))
    leaves, other = structures.flatten(
        gradients,
        is_leaf=lambda x: x is None or isinstance(x, IndexedSlices) or is_value_leaf(x),
    )
    if form != other or any(
        place is None and leaf is not None for place, leaf in zip(places, leaves, strict=True)
    ):
        raise VariableError(
            "apply() takes gradients and variables of the same structure, got "
            f"{other} for gradients and {form} for variables."
        )
    return [leaf for leaf, place in zip(leaves, places, strict=True) if place is not None]


def flatten_variables(variables: PyTree) -> tuple[list[Variable], Any]:
    """Returns the variables in a structure, and the structure; names the unnamed ones by their paths.

    Raises:
        VariableError: If a leaf is not a variable.
    """
    leaves, form = structures.flatten(variables, is_leaf=is_variable)
    found = [variable_of(leaf) for leaf in leaves]
    for leaf in found:
        if not is_own_variable(leaf):
            raise VariableError(f"An Optimizer updates variables, got {type(leaf).__name__}.")
    name_by_path(variables, found)
    return found, form


def check_distinct(variables: Sequence[Variable]) -> None:
    """Raises ``VariableError`` if a variable occurs twice."""
    counts = collections.Counter(map(id, variables))
    if len(counts) < len(variables):
        twice = next(variable for variable in variables if counts[id(variable)] > 1)
        raise VariableError(
            "apply_gradients takes one gradient for each variable, got "
            f"{counts[id(twice)]} for {twice.name!r}. Pass their sum."
        )


def gradient_arrays(gradient: ArrayLike, dtype: np.dtype[Any]) -> Any:
    """Returns a gradient as arrays: one, or those of an ``IndexedSlices``."""
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(_array(gradient.values, dtype), _array(gradient.indices))
    return _array(gradient, dtype)


def _array(value: ArrayLike, dtype: np.dtype[Any] | None = None) -> Any:
    value = array_of(value)
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype)


def dense_gradient(gradient: ArrayLike, variable: Variable, value: ArrayLike = None) -> Any:
    """Returns a gradient as one dense array.

    Args:
        gradient: The gradient.
        variable: Its variable.
        value: The variable's value: the array is put on its devices. Default: the gradient is not moved.
    """
    if isinstance(gradient, IndexedSlices):
        shape = tuple(dim or 0 for dim in variable.shape)
        values = own_host_array(array_of(gradient.values))
        indices = own_host_array(array_of(gradient.indices))
        gradient = IndexedSlices(values, indices, shape).to_dense()
    gradient = jnp.asarray(own_host_array(array_of(gradient)), variable.dtype)
    known = value is not None and not is_tracer(gradient) and not is_tracer(value)
    return jax.device_put(gradient, value.sharding) if known else gradient
