"""Modules, optimizers, states and metrics of flax.nnx: the variables and arrays in them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import Any

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.variables.stand_ins import is_variable, variable_of

__all__ = ["Live", "is_nnx_object", "nnx_parts"]


class Live:
    """An array of an nnx object: whatever the object holds there when this is called.

    Args:
        read: Returns it.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __call__(self) -> Any:
        """Returns the array."""
        return self._read()


Part = tuple[tuple[Any, ...], Any, Callable[[Any], None]]


def is_nnx_object(value: Any) -> bool:
    """Returns whether ``value`` is an object of nnx with variables, or one of its variables."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def nnx_parts(value: Any) -> Iterator[Part]:
    """Yields what an object holds, each with the way to it and what replaces it.

    Arrays are yielded as ``Live``. A variable of ours is yielded as it is, and never replaced: it is
    assigned to. nnx must not see it, because a variable is a pytree whose copy is an array.
    """
    nnx = sys.modules["flax.nnx"]
    nodes = dict(nnx.iter_graph(value))
    # iter_graph opens our variables like any pytree; their own arrays are not parts of the object.
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
            yield keys, Live(functools.partial(_get, holder, path[-1])), _setter(holder, path[-1])


def _contents(node: Any) -> Iterator[Part]:
    """Yields what a variable of nnx holds: an array, a variable of ours, or a structure of them."""
    raw = (
        node.get_raw_value()
    )  # get_value() copies pytrees, and the copy of our variable is an array
    ways, structure = jax.tree_util.tree_flatten_with_path(raw, is_leaf=is_variable)
    if jax.tree_util.treedef_is_leaf(structure) and not is_variable(raw):
        yield (), Live(node.get_value), node.set_value
        return
    for position, (path, leaf) in enumerate(ways):
        if is_variable(leaf):
            yield path, variable_of(leaf), lambda _: None
        else:
            yield path, Live(functools.partial(_leaf, node, position)), _leaf_setter(node, position)


def _leaves(node: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(node.get_raw_value(), is_leaf=is_variable)


def _leaf(node: Any, position: int) -> Any:
    return _leaves(node)[0][position]


def _leaf_setter(node: Any, position: int) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        leaves, structure = _leaves(node)
        leaves[position] = value
        # Not set_value, which would copy the structure and our variables in it.
        node.set_raw_value(structure.unflatten(leaves))

    return put


def _get(holder: Any, key: Any) -> Any:
    if isinstance(holder, MutableMapping | MutableSequence):
        return holder[key]
    return getattr(holder, key)


def _setter(holder: Any, key: Any) -> Callable[[Any], None]:
    nnx = sys.modules["flax.nnx"]
    if isinstance(holder, MutableMapping | MutableSequence):
        return lambda value: holder.__setitem__(key, value)
    if isinstance(holder, nnx.Pytree):
        return lambda value: setattr(holder, key, value)
    raise InvalidArgumentError(
        f"A Checkpoint sets an array of an nnx object again, got one at {key!r} in a "
        f"{type(holder).__name__}, whose parts cannot be set. Put it into an nnx.Variable."
    )


def _key(step: Any) -> Any:
    if isinstance(step, int):
        return jax.tree_util.SequenceKey(step)
    return jax.tree_util.DictKey(step)
