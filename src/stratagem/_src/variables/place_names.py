"""Names of variables after their place in a structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.variables.variable import Variable

__all__ = ["name_by_place", "place_name"]


def name_by_place(structure: Any, variables: Sequence[Variable]) -> None:
    """Names the variables of a structure that were given no name after their places in it.

    A place that only numbers tell, as in a list of variables, is no name.

    Args:
        structure: The structure.
        variables: The variables in it.

    >>> from stratagem._src.variables.variable import Variable
    >>> model = {"layers": [{"w": Variable(1.0)}], "b": Variable(0.0, name="bias")}
    >>> name_by_place(model, [model["b"], model["layers"][0]["w"]])
    >>> model["layers"][0]["w"].name, model["b"].name
    ('layers/0/w:0', 'bias:0')
    """
    if isinstance(structure, Variable) or all(variable.is_named for variable in variables):
        return
    if type(structure) in (list, tuple) and len(structure) == len(variables):
        return
    leaves = jax.tree_util.tree_leaves_with_path(structure, lambda x: isinstance(x, Variable))
    for path, leaf in leaves:
        says_something = any(not isinstance(key, jax.tree_util.SequenceKey) for key in path)
        if isinstance(leaf, Variable) and says_something:
            leaf.take_name(place_name(path))


def place_name(path: Sequence[Any]) -> str:
    """Returns a way through a structure as a name: its keys, attributes and numbers, with slashes.

    >>> [(path, _)] = jax.tree_util.tree_leaves_with_path({"layers": [{"w": 1}]})
    >>> place_name(path)
    'layers/0/w'
    """
    return "/".join(map(_part, path))


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
