"""Rows: several elements stacked into one nest of arrays with a leading dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element, Leaf, PyTree
from stratagem._src.data.dataset_spec import spec_of
from stratagem._src.data.plan.aligned_arrays import copy_of
from stratagem._src.data.structure import (
    describe,
    flatten,
    flatten_with_path,
    map_structure,
    same_structure,
)
from stratagem._src.data.tensor_spec import STRING

__all__ = [
    "concat_rows",
    "copy_containers",
    "copy_element",
    "num_rows",
    "read_only_view",
    "row",
    "slice_rows",
    "stack_elements",
    "unstack_rows",
]


def stack_elements(elements: list[Any]) -> Any:
    """Returns the elements as rows.

    Raises:
        InvalidArgumentError: If their structures, shapes or types differ.
    """
    try:
        return map_structure(lambda *leaves: _stack(leaves), *elements)
    except (ValueError, TypeError, AttributeError):
        _explain_mismatch(elements)
        raise


def _stack(leaves: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    first = leaves[0]
    if isinstance(first, bytes):
        if set(map(type, leaves)) != {bytes}:
            raise TypeError
        result = np.empty(len(leaves), STRING)
        result[:] = leaves
        return result
    dtype = first.dtype
    if any(leaf.dtype != dtype for leaf in leaves if not isinstance(leaf, bytes)):
        raise TypeError
    if first.ndim == 0:
        return np.array(leaves, dtype)
    return np.stack(leaves)


def _explain_mismatch(elements: list[Any]) -> None:
    first = elements[0]
    map_structure(lambda leaf: spec_of(leaf).batched(None), first)
    for position, element in enumerate(elements[1:], start=1):
        if not same_structure(first, element):
            raise InvalidArgumentError(
                "The elements of a batch must have the same structure, got "
                f"{describe(first)} and, {position} elements later, {describe(element)}."
            )
        pairs = zip(flatten_with_path(first), flatten_with_path(element), strict=True)
        for (path, a), (_, b) in pairs:
            if spec_of(a) != spec_of(b):
                raise InvalidArgumentError(
                    "The elements of a batch must have the same shape and type, got "
                    f"{spec_of(a)} and, {position} elements later, {spec_of(b)}"
                    f"{f' in component {path}' if path else ''}. "
                    "Use padded_batch for different shapes, or make them equal with map."
                )


def num_rows(rows: PyTree) -> int:
    """Returns the number of rows.

    Raises:
        InvalidArgumentError: If a component is a scalar or the components disagree.
    """
    leaves = flatten(rows)
    if not leaves:
        raise InvalidArgumentError("An element needs at least one component, got none.")
    sizes = {leaf.shape[0] if getattr(leaf, "shape", ()) else None for leaf in leaves}
    if len(sizes) > 1 or None in sizes:
        for leaf in leaves:
            spec_of(leaf).row()
        shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
        raise InvalidArgumentError(
            f"Every component must have the same leading dimension, got the shapes {shapes}."
        )
    return int(leaves[0].shape[0])


def slice_rows(rows: PyTree, start: int, stop: int | None = None, step: int = 1) -> Any:
    """Returns a view of the rows from ``start`` to ``stop``."""
    return map_structure(lambda leaf: leaf[start:stop:step], rows)


def row(rows: PyTree, position: int) -> Any:
    """Returns one row as an element that shares no memory with ``rows``."""
    # This runs for every element, so the common nests skip the general tree walk.
    if type(rows) is np.ndarray:
        return _pick(rows, position)
    if type(rows) is tuple:
        return tuple([row(part, position) for part in rows])
    return map_structure(lambda leaf: _pick(leaf, position), rows)


def _pick(leaf: Leaf, position: int) -> Any:
    item = leaf[position]
    return copy_of(item) if isinstance(item, np.ndarray) else item


def read_only_view(leaf: Leaf) -> Any:
    """Returns a read-only view of a leaf that is returned more than once.

    It is a view, because the array itself may belong to code that still writes to it.
    """
    if not isinstance(leaf, np.ndarray) or not leaf.flags.writeable:
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def copy_containers(element: Element) -> Any:
    """Returns an element with the same leaves in new containers, which the consumer may modify."""
    return element if isinstance(element, np.ndarray) else map_structure(_identity, element)


def _identity(leaf: Leaf) -> Any:
    return leaf


def copy_element(element: Element) -> Any:
    """Returns a deep copy of an element."""
    return map_structure(
        lambda leaf: copy_of(leaf) if isinstance(leaf, np.ndarray) else leaf, element
    )


def unstack_rows(rows: PyTree) -> list[Any]:
    """Returns the rows as a list of elements."""
    return [row(rows, position) for position in range(num_rows(rows))]


def concat_rows(parts: list[Any]) -> Any:
    """Returns the concatenated rows of all parts.

    Raises:
        InvalidArgumentError: If they cannot be stacked.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return map_structure(lambda *leaves: _concat(leaves), *parts)
    except (ValueError, TypeError):
        _explain_mismatch([row(part, 0) for part in parts])
        raise


def _concat(leaves: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    if any(leaf.dtype != leaves[0].dtype for leaf in leaves):
        raise TypeError
    return np.concatenate(leaves)
