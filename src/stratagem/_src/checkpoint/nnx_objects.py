"""Modules, optimizers and metrics of flax.nnx, whose variables hold arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

__all__ = ["Live", "is_nnx_object", "nnx_parts"]


class Live:
    """What a variable of nnx holds whenever it is called."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def __call__(self) -> Any:
        """Returns the array."""
        return self._variable.get_value()


def is_nnx_object(value: Any) -> bool:
    """Returns whether ``value`` is an object of nnx with variables, or one of its variables."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def nnx_parts(
    value: Any,
) -> Iterator[tuple[tuple[Any, ...], Live, Callable[[Any], None]]]:
    """Yields the variables of an object, each with the way to it and what sets its array."""
    nnx = sys.modules["flax.nnx"]
    for path, node in nnx.iter_graph(value):
        if isinstance(node, nnx.Variable):
            yield tuple(map(_key, path)), Live(node), node.set_value


def _key(step: Any) -> Any:
    if isinstance(step, int):
        return jax.tree_util.SequenceKey(step)
    return jax.tree_util.DictKey(step)
