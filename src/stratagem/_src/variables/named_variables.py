"""``named_variables``: a variable for each leaf of a pytree, named by its path."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.core.types import PyTree
from stratagem._src.variables.path_names import path_name
from stratagem._src.variables.variable import Variable

__all__ = ["named_variables"]


def named_variables(tree: PyTree, prefix: str = "", **options: Any) -> Any:
    """Returns a pytree with a ``Variable`` for each leaf, named by its path for sharding rules.

    The path joins keys, attributes and indices by slashes, as in ``"layers/0/kernel"``.

    Args:
        tree: Initial values, such as the parameters of a Flax, Equinox or Haiku model.
        prefix: Put before each path, with a slash.
        **options: More arguments of ``Variable``.

    JAX equivalent: ``jax.tree_util.tree_map_with_path``.

    >>> import stratagem as sg
    >>> model = sg.distribute.experimental.named_variables({"dense": {"w": 1.0, "b": 0.0}}, "model")
    >>> model["dense"]["w"].name
    'model/dense/w:0'
    """

    def make(path: Any, value: Any) -> Variable:
        return Variable(value, name="/".join(filter(None, (prefix, path_name(path)))), **options)

    return jax.tree_util.tree_map_with_path(make, tree)
