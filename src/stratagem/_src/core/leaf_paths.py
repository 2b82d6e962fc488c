"""Descriptive paths of the leaves of a pytree, with the types of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.types import ArrayLike, PyTree

__all__ = ["leaf_names", "leaf_paths"]

_PLAIN = (tuple, list, dict)


def leaf_names(tree: PyTree) -> list[str]:
    """Returns the path of each leaf as text, with the types of nodes that are not plain containers.

    >>> import optax
    >>> leaf_names(optax.sgd(0.1, momentum=0.9).init([1.0]))
    ['[0]TraceState.trace[0]']
    """
    return ["".join(text for text, _, _ in path) for path in leaf_paths(tree)]


def leaf_paths(tree: PyTree) -> list[list[tuple[str, Any, Any]]]:
    """Returns the path of each leaf: for each step its text, its node and its key."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [_described_path(tree, path) for path, _ in leaves]


def _described_path(node: PyTree, path: Sequence[Any]) -> list[tuple[str, Any, Any]]:
    steps = []
    for key in path:
        kind = "" if node is None or type(node) in _PLAIN else type(node).__name__
        steps.append((f"{kind}{key}", node, key))
        node = _child(node, key)
    return steps


def _child(node: PyTree, key: ArrayLike) -> Any:
    """Returns the child at a key; ``None`` if only the type's own flattening function knows it."""
    if node is None:
        return None
    if isinstance(key, jax.tree_util.GetAttrKey):
        return getattr(node, key.name, None)
    if isinstance(key, jax.tree_util.SequenceKey):
        return node[key.idx]
    if isinstance(key, jax.tree_util.DictKey):
        return node[key.key]
    return None
