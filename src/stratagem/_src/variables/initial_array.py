"""The initial value of a variable: validation, conversion and a private copy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import NotAnArrayError, VariableError
from stratagem._src.core.int64_guard import check_fits
from stratagem._src.core.masked_arrays import check_not_masked
from stratagem._src.core.torch_tensors import array_of_tensor, is_tensor
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.data.plan.aligned_arrays import copy_of
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import ArrayOperators, array_of
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.operands import kind_of

__all__ = ["initial_array"]


def initial_array(value: ArrayLike, dtype: DTypeLike) -> Any:
    """Returns the initial value of a variable as an array that shares no memory with the caller.

    Args:
        value: An array, a number, a variable, or a function that returns one.
        dtype: The element type; ``None`` for that of the value.

    Raises:
        NotAnArrayError: If it is a per-replica value.
        VariableError: If it is ``None`` or not numeric.
        InvalidArgumentError: If its numbers do not fit the dtype, or it has a mask.
    """
    if callable(value) and not isinstance(value, ArrayOperators):
        value = evaluate_now(value)
    value = array_of(value)
    if value is None:
        raise VariableError("A variable needs an initial_value, got None.")
    if is_tensor(value):
        value = array_of_tensor(value)
    if isinstance(value, PerReplica):
        raise NotAnArrayError("initial_value must be one array, got a PerReplica. Reduce it first.")
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        leaves = jax.tree.leaves(value)
        if any(isinstance(leaf, (str, bytes)) for leaf in leaves):
            raise VariableError(
                f"A variable holds numbers or booleans, got the string in {value!r}."
            )
        natural = jnp.result_type(*leaves) if leaves else np.float32
        value = np.asarray(value, natural if dtype is None else None)
    kind_of(value.dtype)
    dtype = jax.dtypes.canonicalize_dtype(value.dtype if dtype is None else dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        check_not_masked(value)
        check_fits(value, dtype)
    return value.astype(dtype) if is_tracer(value) else _concrete(value, dtype)


def _concrete(value: ArrayLike, dtype: DTypeLike) -> jax.Array:
    # Copy NumPy arrays here: the caller may change their memory later, and JAX may read it after
    # jnp.asarray has returned.
    own = copy_of(value) if isinstance(value, np.ndarray) else value
    return evaluate_now(lambda: jnp.asarray(own, dtype))
