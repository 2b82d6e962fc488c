"""Structures of values, taken apart and put together as ``tf.nest`` does: variables are leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError

__all__ = [
    "assert_same_structure",
    "flatten",
    "is_nested",
    "map_structure",
    "pack_sequence_as",
]


def flatten(structure: Any) -> list[Any]:
    """Returns the leaves of a structure, in the order of its keys.

    Variables, per-replica values and ``None`` are leaves.

    JAX equivalent: ``jax.tree.leaves``, which returns the values of variables and no ``None``.

    >>> import stratagem as sg
    >>> model = {"w": sg.Variable(2.0, name="w"), "b": sg.Variable(1.0, name="b")}
    >>> [v.name for v in sg.nest.flatten(model)]
    ['b:0', 'w:0']
    """
    return structures.leaves_of(structure, _is_leaf)


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Returns the structure with ``func`` of each leaf, of all structures, in its place.

    JAX equivalent: ``jax.tree.map``, which hands the values of variables to ``func``.

    >>> import stratagem as sg
    >>> model = {"w": sg.Variable(2.0), "b": [sg.Variable(1.0)]}
    >>> doubled = sg.nest.map_structure(lambda v: v.assign(2 * v), model)
    >>> doubled["w"] is model["w"], float(model["w"])
    (True, 4.0)

    Args:
        func: Takes a leaf of each structure.
        *structure: One or more structures of the same form.

    Raises:
        InvalidArgumentError: If their forms differ, before ``func`` is called.
    """
    if not structure:
        raise InvalidArgumentError("map_structure needs at least one structure, got none.")
    for other in structure[1:]:
        assert_same_structure(structure[0], other)
    leaves, form = structures.flatten(structure[0], _is_leaf)
    others = [flatten(other) for other in structure[1:]]
    return jax.tree.unflatten(form, list(map(func, leaves, *others)))


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """Returns a structure of this form with other leaves, in the order of ``flatten``.

    JAX equivalent: ``jax.tree.unflatten``.

    >>> pack_sequence_as({"b": 0, "a": (0, 0)}, [1, 2, 3])
    {'a': (1, 2), 'b': 3}

    Raises:
        InvalidArgumentError: If there is not one leaf for each of the structure.
    """
    leaves, form = structures.flatten(structure, _is_leaf)
    if len(flat_sequence) != len(leaves):
        raise InvalidArgumentError(
            f"The structure has {len(leaves)} leaves, got {len(flat_sequence)}: {structure!r}."
        )
    return jax.tree.unflatten(form, list(flat_sequence))


def assert_same_structure(nest1: Any, nest2: Any) -> None:
    """Raises if two structures differ in form.

    >>> assert_same_structure([1, {"a": 2}], [3, {"a": 4}])

    Raises:
        InvalidArgumentError: If they differ.
    """
    first, second = (structures.flatten(nest, _is_leaf)[1] for nest in (nest1, nest2))
    if first != second:
        raise InvalidArgumentError(
            f"Two structures must have the same form, got {first} and {second}."
        )


def is_nested(structure: Any) -> bool:
    """Returns whether something is a structure and not a leaf.

    >>> is_nested([1]), is_nested(1), is_nested("ab")
    (True, False, False)
    """
    leaves, _ = structures.flatten(structure, _is_leaf)
    return not (len(leaves) == 1 and leaves[0] is structure)


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, structures.ValueLeaf)
