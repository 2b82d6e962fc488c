"""``call_on_variable_server``: runs a function on a variable's parameter server, to update it there."""

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
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import DENSE_FUNCTION, ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import operand_arrays
from stratagem._src.variables.updates import update_on_server
from stratagem._src.variables.variable import create_plain_variable

__all__ = ["call_on_variable_server"]


def call_on_variable_server(
    variable: RemoteVariable,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Calls ``fn(variable, *args, **kwargs)`` on the variable's server, as one atomic update.

    For a sharded variable, ``fn`` is called once per shard; arguments of the variable's shape are split in
    the same way. ``fn`` must use the variable only through its argument.

    Returns:
        The result of ``fn``; a list with one result per shard if the variable is sharded; the variable
        itself where ``fn`` returned it. In a compiled function, the call takes place after the function has
        run, and the result is the variable.

    Raises:
        VariableError: If an argument for a sharded variable is ``IndexedSlices``.
    """
    arguments = (tuple(args), dict(kwargs or {}))
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, IndexedSlices))
    if len(variable.shards) > 1 and any(isinstance(leaf, IndexedSlices) for leaf in leaves):
        raise VariableError(
            f"extended.update() of the sharded variable {variable.name!r} got IndexedSlices, whose "
            "indices refer to the unsharded variable. Use its scatter_*() methods or an Optimizer."
        )
    arrays, without_arrays = _extract_arrays(arguments)
    function = _FunctionOnVariable(fn, without_arrays)
    update = update_on_server(DENSE_FUNCTION, cloudpickle.dumps(function))
    if frames.current_frame() is not None:
        return variable.apply_update(update, arrays)
    variable.check_not_tracing(arrays)
    requests = variable.update_requests(update, operand_arrays(arrays))
    results = [_decode_result(variable, result) for result in variable.storage.call(requests)]
    if all(result is variable for result in results):
        return variable
    return results[0] if len(variable.shards) == 1 else results


class _VariableMarker:
    """Placeholder in a result for the variable that the function was called on."""


@dataclass(frozen=True, slots=True)
class _ArraySlot:
    """Placeholder in the arguments for an array that is sent separately."""

    index: int


def _extract_arrays(arguments: PyTree) -> tuple[tuple[Any, ...], Any]:
    """Returns the arrays of a tree, and the tree with placeholders for them."""
    arrays: list[Any] = []

    def extract(leaf: Leaf) -> Any:
        if not hasattr(leaf, "dtype"):
            return leaf
        arrays.append(leaf)
        return _ArraySlot(len(arrays) - 1)

    without_arrays = jax.tree.map(extract, arguments)
    return tuple(arrays), without_arrays


class _FunctionOnVariable(ServerFunction):
    """A function and its arguments; arrays are operands, sent separately.

    Args:
        fn: Takes the variable and the arguments.
        arguments: Positional and keyword arguments, with placeholders for arrays.
    """

    def __init__(self, fn: Callable[..., Any], arguments: PyTree) -> None:
        self._fn = fn
        self._arguments = arguments

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Calls the function with a local variable, and stores that variable's new value."""
        args, kwargs = jax.tree.map(
            lambda leaf: operands[leaf.index] if isinstance(leaf, _ArraySlot) else leaf,
            self._arguments,
        )
        with stored.lock, on_server(stored.dtype):
            variable = create_plain_variable(stored.read(), name=stored.name)
            before = variable.snapshot()
            result = self._fn(variable, *args, **kwargs)
            after = variable.snapshot()
            if after is not before:
                stored.replace(np.asarray(after))
            return jax.tree.map(
                lambda leaf: _encode_leaf(variable, leaf), result, is_leaf=is_value_leaf
            )


def _encode_leaf(variable: object, leaf: Leaf) -> Any:
    if leaf is variable:
        return _VariableMarker()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _decode_result(variable: RemoteVariable, result: PyTree) -> Any:
    def decode(leaf: Leaf) -> Any:
        if isinstance(leaf, _VariableMarker):
            return variable
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(decode, result)
