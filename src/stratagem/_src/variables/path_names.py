"""Names of variables from their paths in a structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["name_by_path", "path_name"]


def name_by_path(structure: PyTree, variables: Sequence[Variable]) -> None:
    """Names the unnamed variables of a structure after their paths in it.

    A path of indices only, as in a plain list of variables, is not used as a name.

    Args:
        structure: The structure.
        variables: The variables in it.

    >>> from stratagem._src.variables.variable import Variable
    >>> model = {"layers": [{"w": Variable(1.0)}], "b": Variable(0.0, name="bias")}
    >>> name_by_path(model, [model["b"], model["layers"][0]["w"]])
    >>> model["layers"][0]["w"].name, model["b"].name
    ('layers/0/w:0', 'bias:0')
    """
    if is_own_variable(structure) or all(variable.is_named for variable in variables):
        return
    if type(structure) in (list, tuple) and len(structure) == len(variables):
        return
    leaves = jax.tree_util.tree_leaves_with_path(structure, lambda x: is_own_variable(x))
    for path, leaf in leaves:
        has_words = any(not isinstance(key, jax.tree_util.SequenceKey) for key in path)
        if is_own_variable(leaf) and has_words:
            leaf.take_name(path_name(path))


def path_name(path: Sequence[Any]) -> str:
    """Returns a JAX key path as a name: its keys, attributes and indices, joined by slashes.

    >>> [(path, _)] = jax.tree_util.tree_leaves_with_path({"layers": [{"w": 1}]})
    >>> path_name(path)
    'layers/0/w'
    """
    return "/".join(map(_part, path))


def _part(key: ArrayLike) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
