"""Gradients and the variables that they are for, as an ``Optimizer`` is given them."""

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
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.host_arrays import taken
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.fully_sharded_variable import InParts
from stratagem._src.variables.place_names import name_by_place
from stratagem._src.variables.stand_ins import is_variable, variable_of
from stratagem._src.variables.variable import Variable

__all__ = [
    "check_distinct",
    "dense_gradient",
    "flatten_gradients",
    "flatten_variables",
    "gradient_arrays",
    "split_pairs",
]


def split_pairs(grads_and_vars: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Variable]]:
    """Returns gradients and their variables; pairs without a gradient (``None``) are left out.

    Raises:
        VariableError: If they are no pairs, or a variable has two gradients.
        ShapeMismatchError: If a gradient has another shape than its variable.
        InvalidArgumentError: If it is complex and the variable is not.
    """
    gradients, variables = [], []
    for pair in grads_and_vars:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise VariableError(
                f"apply_gradients takes (gradient, variable) pairs, got {type(pair).__name__} for a pair. "
                "Write apply_gradients(zip(gradients, variables)), or apply(gradients, variables)."
            )
        gradient, variable = pair[0], variable_of(pair[1])
        if gradient is None:
            continue
        if not isinstance(variable, Variable):
            swapped = isinstance(variable_of(gradient), Variable)
            raise VariableError(
                "apply_gradients takes (gradient, variable) pairs, got "
                f"{type(variable).__name__} for a variable."
                f"{' The gradient comes first.' if swapped else ''}"
            )
        _check_shape(gradient, variable)
        _check_is_real(gradient, variable)
        gradients.append(gradient)
        variables.append(variable)
    check_distinct(variables)
    return gradients, variables


def _check_shape(gradient: Any, variable: Variable) -> None:
    shape = tuple(dim or 0 for dim in variable.shape)
    if isinstance(gradient, IndexedSlices):
        rows, received = np.shape(array_of(gradient.indices)), np.shape(array_of(gradient.values))
        if len(rows) != 1 or not shape or received != (*rows, *shape[1:]):
            raise ShapeMismatchError(
                f"An IndexedSlices gradient of {variable.name!r} of shape {shape} has a vector of indices, "
                f"and for each of them a row of the variable, got indices of shape {rows} and values "
                f"of shape {received}."
            )
        return
    value = array_of(gradient)
    if isinstance(value, (PerReplica, InParts)):
        return  # what the replicas have of it is checked where they are
    if np.shape(value) != shape:
        raise ShapeMismatchError(
            f"A gradient has the shape of its variable, got {np.shape(value)} for {variable.name!r} of "
            f"shape {shape}. Give each variable the gradient that value_and_grad returns for it, or use "
            "jnp.broadcast_to where one number is meant for all elements."
        )


def _check_is_real(gradient: Any, variable: Variable) -> None:
    value = array_of(gradient.values if isinstance(gradient, IndexedSlices) else gradient)
    is_complex = np.issubdtype(getattr(value, "dtype", np.float32), np.complexfloating)
    if is_complex and not np.issubdtype(variable.dtype, np.complexfloating):
        raise InvalidArgumentError(
            f"The gradient of {variable.name!r}, which is {np.dtype(variable.dtype).name}, is real, got "
            f"{value.dtype.name}: its imaginary part would be dropped. Give its jnp.real if that is meant."
        )


def flatten_gradients(gradients: Any) -> tuple[list[Any], Any]:
    """Returns the gradients in a structure, ``None`` included, and the structure."""
    return structures.flatten(
        gradients,
        is_leaf=lambda x: x is None or isinstance(x, IndexedSlices) or is_value_leaf(x),
    )


def flatten_variables(variables: Any) -> tuple[list[Variable], Any]:
    """Returns the variables in a structure, and the structure; those without a name get one.

    Raises:
        VariableError: If there is something else in it.
    """
    leaves, form = structures.flatten(variables, is_leaf=is_variable)
    found = [variable_of(leaf) for leaf in leaves]
    for leaf in found:
        if not isinstance(leaf, Variable):
            raise VariableError(f"An Optimizer updates variables, got {type(leaf).__name__}.")
    name_by_place(variables, found)
    return found, form


def check_distinct(variables: Sequence[Variable]) -> None:
    """Raises ``VariableError`` if a variable is there twice."""
    counts = collections.Counter(map(id, variables))
    if len(counts) < len(variables):
        twice = next(variable for variable in variables if counts[id(variable)] > 1)
        raise VariableError(
            "apply_gradients takes one gradient for each variable, got "
            f"{counts[id(twice)]} for {twice.name!r}. Add them first, and pass their sum."
        )


def gradient_arrays(gradient: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a gradient as arrays: one, or those of an ``IndexedSlices``."""
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(_array(gradient.values, dtype), _array(gradient.indices))
    return _array(gradient, dtype)


def _array(value: Any, dtype: np.dtype[Any] | None = None) -> Any:
    value = array_of(value)
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype)


def dense_gradient(gradient: Any, variable: Variable, value: Any = None) -> Any:
    """Returns a gradient as one array.

    Args:
        gradient: The gradient.
        variable: What it is for.
        value: The variable's value, on whose devices the array is to be; default wherever it is.
    """
    if isinstance(gradient, IndexedSlices):
        shape = tuple(dim or 0 for dim in variable.shape)
        parts = taken(array_of(gradient.values)), taken(array_of(gradient.indices))
        gradient = IndexedSlices(*parts, shape).to_dense()
    gradient = jnp.asarray(taken(array_of(gradient)), variable.dtype)
    known = value is not None and not is_tracer(gradient) and not is_tracer(value)
    return jax.device_put(gradient, value.sharding) if known else gradient
