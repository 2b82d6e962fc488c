"""Names for the leaves of a structure, which say what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

__all__ = ["leaf_names", "leaf_ways"]

_PLAIN = (tuple, list, dict)


def leaf_names(tree: Any) -> list[str]:
    """Returns the way to each leaf, with the types of the nodes on it that are no plain containers.

    >>> import optax
    >>> leaf_names(optax.sgd(0.1, momentum=0.9).init([1.0]))
    ['[0]TraceState.trace[0]']
    """
    return ["".join(text for text, _, _ in way) for way in leaf_ways(tree)]


def leaf_ways(tree: Any) -> list[list[tuple[str, Any, Any]]]:
    """Returns the steps to each leaf: what a step is called, from which node, and by which key."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [_way(tree, path) for path, _ in leaves]


def _way(node: Any, path: Sequence[Any]) -> list[tuple[str, Any, Any]]:
    way = []
    for key in path:
        kind = "" if node is None or type(node) in _PLAIN else type(node).__name__
        way.append((f"{kind}{key}", node, key))
        node = _child(node, key)
    return way


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
