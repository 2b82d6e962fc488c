"""Calling a function where a variable lives, to update it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import VariableError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import WHOLE_FUNCTION, ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import access as state
from stratagem._src.variables.remotely_held_variable import operand_arrays
from stratagem._src.variables.updates import update_on_server
from stratagem._src.variables.variable import create_plain_variable

__all__ = ["call_where_it_lives"]


def call_where_it_lives(
    variable: RemoteVariable,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Calls ``fn(variable, *args, **kwargs)`` on the variable's server, as one atomic update.

    Of a sharded variable ``fn`` is called with each shard; arguments of the variable's shape are cut up in
    the same way. ``fn`` must not use the variable but by its argument.

    Returns:
        What ``fn`` returned, of a sharded variable a list with what it returned for each shard; the
        variable itself where ``fn`` returned that. In a compiled function, where the call takes place
        after the function has run: the variable.

    Raises:
        VariableError: If rows are given for a sharded variable.
    """
    arguments = (tuple(args), dict(kwargs or {}))
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, IndexedSlices))
    if len(variable.shards) > 1 and any(isinstance(leaf, IndexedSlices) for leaf in leaves):
        raise VariableError(
            f"extended.update() of the sharded variable {variable.name!r} got IndexedSlices, whose "
            "indices count the rows of the whole. Use its scatter_*() methods or an Optimizer."
        )
    arrays, without_arrays = _take_out_arrays(arguments)
    function = _FunctionOnVariable(fn, without_arrays)
    update = update_on_server(WHOLE_FUNCTION, cloudpickle.dumps(function))
    if state.current_frame() is not None:
        return variable.apply_update(update, arrays)
    variable.check_not_tracing(arrays)
    requests = variable.update_requests(update, operand_arrays(arrays))
    results = [_received(variable, result) for result in variable.storage.call(requests)]
    if all(result is variable for result in results):
        return variable
    return results[0] if len(variable.shards) == 1 else results


class _TheVariable:
    """Stands in a result for the variable that the function was called on."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands in the arguments for an array that travels beside them."""

    index: int


def _take_out_arrays(arguments: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns the arrays in a structure, and the structure with places for them."""
    arrays: list[Any] = []

    def take_out(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype"):
            return leaf
        arrays.append(leaf)
        return _Place(len(arrays) - 1)

    without_arrays = jax.tree.map(take_out, arguments)
    return tuple(arrays), without_arrays


class _FunctionOnVariable(ServerFunction):
    """A function with its arguments, but for the arrays among them.

    Args:
        fn: Takes the variable and the arguments.
        arguments: Positional and keyword arguments, with places for arrays.
    """

    def __init__(self, fn: Callable[..., Any], arguments: Any) -> None:
        self._fn = fn
        self._arguments = arguments

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Calls the function with a variable of this process, and takes over what it then holds."""
        args, kwargs = jax.tree.map(
            lambda leaf: operands[leaf.index] if isinstance(leaf, _Place) else leaf, self._arguments
        )
        with stored.lock, on_server(stored.dtype):
            variable = create_plain_variable(stored.read(), name=stored.name)
            before = variable.snapshot()
            result = self._fn(variable, *args, **kwargs)
            after = variable.snapshot()
            if after is not before:
                stored.replace(np.asarray(after))
            return jax.tree.map(lambda leaf: _sent(variable, leaf), result, is_leaf=is_value_leaf)


def _sent(variable: Any, leaf: Any) -> Any:
    if leaf is variable:
        return _TheVariable()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _received(variable: RemoteVariable, result: Any) -> Any:
    def receive(leaf: Any) -> Any:
        if isinstance(leaf, _TheVariable):
            return variable
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(receive, result)
