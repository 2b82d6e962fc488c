"""The variables and arrays in modules, optimizers, states and metrics of flax.nnx."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import Any

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.variables.foreign_variables import is_variable, variable_of

__all__ = ["LiveArray", "is_nnx_object", "nnx_parts"]


class LiveArray:
    """A reference to an array of an nnx object; a call returns its current value.

    Args:
        read: Returns the current array.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __call__(self) -> Any:
        """Returns the current array."""
        return self._read()


Part = tuple[tuple[Any, ...], Any, Callable[[Any], None]]


def is_nnx_object(value: object) -> bool:
    """Returns whether ``value`` is an nnx object with variables, or an nnx variable."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def nnx_parts(value: PyTree) -> Iterator[Part]:
    """Yields the variables and arrays of an object, each with its path and a setter.

    Arrays are yielded as ``LiveArray``. A stratagem variable is yielded as it is; its setter does nothing,
    because it is restored by assignment. nnx must not copy it: a variable is a pytree whose copy is an
    array.
    """
    nnx = sys.modules["flax.nnx"]
    nodes = dict(nnx.iter_graph(value))
    # iter_graph descends into our variables like into any pytree; skip the arrays inside them.
    ours = {path for path, node in nodes.items() if is_variable(node)}
    for path, node in nodes.items():
        keys = tuple(map(_key, path))
        if isinstance(node, nnx.Variable):
            for inner, part, put in _contents(node):
                yield (*keys, *inner), part, put
        elif path in ours:
            yield keys, variable_of(node), lambda _: None
        elif isinstance(node, jax.Array) and path[:-1] not in ours:
            holder = nodes[path[:-1]]
            yield (
                keys,
                LiveArray(functools.partial(_get, holder, path[-1])),
                _setter(holder, path[-1]),
            )


def _contents(node: PyTree) -> Iterator[Part]:
    """Yields the content of an nnx variable: an array, a stratagem variable, or a tree of them."""
    # Not get_value(), which copies pytrees: the copy of our variable is an array.
    raw = node.get_raw_value()
    leaves_with_path, structure = jax.tree_util.tree_flatten_with_path(raw, is_leaf=is_variable)
    if jax.tree_util.treedef_is_leaf(structure) and not is_variable(raw):
        yield (), LiveArray(node.get_value), node.set_value
        return
    for position, (path, leaf) in enumerate(leaves_with_path):
        if is_variable(leaf):
            yield path, variable_of(leaf), lambda _: None
        else:
            yield (
                path,
                LiveArray(functools.partial(_leaf, node, position)),
                _leaf_setter(node, position),
            )


def _leaves(node: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(node.get_raw_value(), is_leaf=is_variable)


def _leaf(node: PyTree, position: int) -> Any:
    return _leaves(node)[0][position]


def _leaf_setter(node: PyTree, position: int) -> Callable[[Any], None]:
    def put(value: ArrayLike) -> None:
        leaves, structure = _leaves(node)
        leaves[position] = value
        # Not set_value, which would copy the tree and our variables in it.
        node.set_raw_value(structure.unflatten(leaves))

    return put


def _get(holder: PyTree, key: Any) -> Any:
    if isinstance(holder, MutableMapping | MutableSequence):
        return holder[key]
    return getattr(holder, key)


def _setter(holder: PyTree, key: Any) -> Callable[[Any], None]:
    nnx = sys.modules["flax.nnx"]
    if isinstance(holder, MutableMapping | MutableSequence):
        return lambda value: holder.__setitem__(key, value)
    if isinstance(holder, nnx.Pytree):
        return lambda value: setattr(holder, key, value)
    raise InvalidArgumentError(
        f"A Checkpoint must be able to replace each array of an nnx object, got one at {key!r} in a "
        f"{type(holder).__name__}, which is immutable. Put the array into an nnx.Variable."
    )


def _key(step: Any) -> Any:
    if isinstance(step, int):
        return jax.tree_util.SequenceKey(step)
    return jax.tree_util.DictKey(step)
