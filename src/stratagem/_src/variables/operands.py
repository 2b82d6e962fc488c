"""Validation of operands of variable updates: type, shape, range and indices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import (
    NotAnArrayError,
    OperandTypeError,
    ShapeMismatchError,
    VariableError,
)
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.int64_guard import fits
from stratagem._src.core.masked_arrays import check_not_masked
from stratagem._src.core.types import ArrayLike
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import array_of, operand_of
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.updates import Update

__all__ = ["checked_operand", "kind_of"]


def checked_operand(variable: Any, update: Update, operand: ArrayLike) -> Any:
    """Returns ``operand`` as arrays of the variable's dtype, checked against its shape.

    Raises:
        VariableError: If it is of the wrong kind, or would lose information.
        ShapeMismatchError: If its shape does not fit.
    """
    if update.sparse:
        return _check_slices(variable, update, operand)
    if isinstance(operand, IndexedSlices):
        raise OperandTypeError(
            f"{update.name}() of {variable.name!r} takes an array, got IndexedSlices. "
            f"Use scatter_{update.name.removeprefix('assign_')}()."
        )
    value = _cast(variable, update, operand)
    if value.shape != variable.shape:
        raise ShapeMismatchError(
            f"{update.name}() of {variable.name!r} needs shape {tuple(variable.shape)}, got "
            f"{value.shape}."
        )
    return value


def _check_slices(variable: Any, update: Update, operand: ArrayLike) -> IndexedSlices:
    if not isinstance(operand, IndexedSlices):
        raise OperandTypeError(
            f"{update.name}() of {variable.name!r} takes an IndexedSlices(values, indices), got "
            f"{type(operand).__name__}."
        )
    values, given = _cast(variable, update, operand.values), operand_of(operand.indices)
    indices = jnp.asarray(given)
    if not variable.shape:
        raise ShapeMismatchError(
            f"{update.name}() needs a variable with rows, but {variable.name!r} is a scalar."
        )
    if indices.ndim != 1 or values.shape != (indices.shape[0], *variable.shape[1:]):
        raise ShapeMismatchError(
            f"{update.name}() of {variable.name!r} (shape {tuple(variable.shape)}) needs a vector of n "
            f"indices and values of shape (n, {', '.join(map(str, variable.shape[1:]))}), got "
            f"indices {indices.shape} and values {values.shape}."
        )
    if not is_tracer(given) and indices.size:
        known = np.asarray(given)
        low, high = int(known.min()), int(known.max())
        if low < 0 or high >= (variable.shape[0] or 0):
            raise VariableError(
                f"{update.name}() of {variable.name!r} needs indices in [0, {variable.shape[0]}), got "
                f"{low} to {high}."
            )
    return IndexedSlices(values, indices, operand.dense_shape)


def _cast(variable: Any, update: Update, operand: ArrayLike) -> Any:
    check_not_masked(operand)
    operand = array_of(operand)
    if isinstance(operand, PerReplica):
        raise NotAnArrayError(
            f"{update.name}() of {variable.name!r} got a PerReplica value. Reduce it first, with "
            "strategy.reduce(...) or strategy.extended.reduce_to(...)."
        )
    value = operand if isinstance(operand, jax.Array) else variable.array_to_keep(operand)
    source = value.dtype
    if source == variable.dtype:
        weak = getattr(value, "weak_type", False)
        return jax.lax.convert_element_type(value, variable.dtype) if weak else value
    if kind_of(source) > kind_of(variable.dtype):
        raise OperandTypeError(
            f"{update.name}() of {variable.name!r} needs {variable.dtype.name}, got {source.name}, which "
            "would lose information. Cast it with .astype(...) if that is intended."
        )
    _check_range(variable, update, value)
    return value.astype(variable.dtype)


def _check_range(variable: Any, update: Update, value: ArrayLike) -> None:
    """Checks that integers fit the variable's narrower type."""
    both_integer = jnp.issubdtype(value.dtype, jnp.integer) and jnp.issubdtype(
        variable.dtype, jnp.integer
    )
    if not both_integer or np.can_cast(value.dtype, variable.dtype):
        return
    known = isinstance(value, np.ndarray)
    if known and fits(value, variable.dtype):
        return
    raise VariableError(
        f"{update.name}() of {variable.name!r} needs {variable.dtype.name}, got {value.dtype.name}"
        f"{f' values from {value.min()} to {value.max()}' if known else ''}, which may not fit. "
        "Cast it with .astype(...) if that is intended."
    )


def kind_of(dtype: np.dtype[Any]) -> int:
    """Returns the rank of a dtype: 0 for boolean, 1 for integer, 2 for floating point, 3 for complex."""
    for rank, family in enumerate((jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)):
        if jnp.issubdtype(dtype, family):
            return rank
    keys = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    raise VariableError(
        f"A variable holds numbers or booleans, got dtype {dtype}."
        f"{' Keep jax.random.key_data(key), and use jax.random.wrap_key_data(v).' if keys else ''}"
    )
