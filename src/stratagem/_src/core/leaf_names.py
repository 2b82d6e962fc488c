"""Names for the leaves of a structure, which say what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

__all__ = ["leaf_names"]

_PLAIN = (tuple, list, dict)


def leaf_names(tree: Any) -> list[str]:
    """Returns the way to each leaf, with the types of the nodes on it that are no plain containers.

    >>> import optax
    >>> leaf_names(optax.sgd(0.1, momentum=0.9).init([1.0]))
    ['[0]TraceState.trace[0]']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [_name(tree, path) for path, _ in leaves]


def _name(node: Any, path: Sequence[Any]) -> str:
    name = ""
    for key in path:
        if node is not None and type(node) not in _PLAIN:
            name += type(node).__name__
        name += str(key)
        node = _child(node, key)
    return name


def _child(node: Any, key: Any) -> Any:
    """Returns what a key leads to; ``None`` where only its type's own flattening would know."""
    if node is None:
        return None
    if isinstance(key, jax.tree_util.GetAttrKey):
        return getattr(node, key.name, None)
    if isinstance(key, jax.tree_util.SequenceKey):
        return node[key.idx]
    if isinstance(key, jax.tree_util.DictKey):
        return node[key.key]
    return None
