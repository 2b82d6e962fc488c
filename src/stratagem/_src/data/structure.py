"""Elements as nests: tuples, named tuples, mappings and attrs classes of arrays, and ``None``.

A list is not a nest but one array, as in tf.data. Dict entries are visited in sorted key order.
``None`` is an empty nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.structures import Container, open_container
from stratagem._src.core.types import PyTree
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = [
    "describe",
    "flatten",
    "flatten_with_path",
    "map_structure",
    "pack_like",
    "same_structure",
]


# The usual leaves, for a fast check.
_LEAVES = (np.ndarray, np.generic, TensorSpec, bytes, str, int, float, complex, list)


def _is_named_tuple(nest: PyTree) -> bool:
    return isinstance(nest, tuple) and hasattr(nest, "_fields")


def _opened(nest: PyTree) -> tuple[Container, list[Any]] | None:
    """Returns a user-defined container and its children; a plain dataclass is a leaf, as in tf.data."""
    if is_dataclass(nest) and not hasattr(nest, "__tf_flatten__"):
        return None
    opened = open_container(nest)
    return None if opened is None else (opened[0], list(opened[1]))


def _rebuild(like: PyTree, children: list[Any]) -> Any:
    if type(like) is tuple:
        return tuple(children)
    if _is_named_tuple(like):
        return type(like)(*children)
    if type(like) is dict:
        by_key = dict(zip(sorted(like), children, strict=True))
        return {key: by_key[key] for key in like}
    opened = _opened(like)
    return None if opened is None else opened[0].make(children)


def _children(nest: PyTree) -> list[Any] | None:
    if isinstance(nest, _LEAVES):
        return None
    if isinstance(nest, tuple):
        return list(nest)
    if nest is None:
        return []
    if isinstance(nest, Mapping):
        return [nest[key] for key in sorted(nest)]
    opened = _opened(nest)
    return None if opened is None else opened[1]


def flatten(nest: PyTree) -> list[Any]:
    """Returns the leaves of a nest in order."""
    children = _children(nest)
    if children is None:
        return [nest]
    return [leaf for child in children for leaf in flatten(child)]


def flatten_with_path(nest: PyTree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each leaf with its path, such as ``[0]['label']``."""
    children = _children(nest)
    if children is None:
        yield path, nest
        return
    keys = sorted(nest) if isinstance(nest, Mapping) else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from flatten_with_path(child, f"{path}[{key!r}]")


def map_structure(fn: Callable[..., Any], nest: PyTree, *others: PyTree) -> Any:
    """Applies ``fn`` to corresponding leaves and returns the results in the structure of the first nest.

    Raises:
        InvalidArgumentError: If the nests differ.
    """
    children = _children(nest)
    if children is None:
        return fn(nest, *others)
    for other in others:
        if not _same_node(nest, other):
            raise InvalidArgumentError(
                f"Elements must have the same structure, got {describe(nest)} and "
                f"{describe(other)}."
            )
    columns = [children, *(_children(other) or [] for other in others)]
    return _rebuild(nest, [map_structure(fn, *parts) for parts in zip(*columns, strict=True)])


def _same_node(a: PyTree, b: PyTree) -> bool:
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys()
    if isinstance(a, tuple):
        return (
            isinstance(b, tuple) and len(a) == len(b) and _is_named_tuple(a) == (_is_named_tuple(b))
        )
    if a is None or b is None:
        return a is b
    a_children, b_children = _children(a), _children(b)
    if a_children is None or b_children is None:
        return a_children is b_children
    return type(a) is type(b) and len(a_children) == len(b_children)


def same_structure(a: PyTree, b: PyTree) -> bool:
    """Returns whether two nests have the same tuples and keys."""
    if not _same_node(a, b):
        return False
    return all(
        same_structure(x, y) for x, y in zip(_children(a) or [], _children(b) or [], strict=True)
    )


def pack_like(like: PyTree, leaves: list[Any]) -> Any:
    """Returns ``leaves`` in the structure of ``like``."""
    remaining = iter(leaves)
    return map_structure(lambda _: next(remaining), like)


def describe(nest: PyTree) -> str:
    """Returns a short description of a nest: its tuples and keys, with ``*`` for a leaf."""
    if nest is None:
        return "None"
    children = _children(nest)
    if children is None:
        return "*"
    if isinstance(nest, Mapping):
        inner = ", ".join(f"{key!r}: {describe(nest[key])}" for key in sorted(nest))
        return f"{{{inner}}}"
    inner = ", ".join(describe(child) for child in children)
    if not isinstance(nest, tuple):
        return f"{type(nest).__name__}({inner})"
    return f"({inner}{',' if len(children) == 1 else ''})"
