"""``tf.nest``: functions on nested structures, in which variables are leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf, PyTree

__all__ = [
    "assert_same_structure",
    "flatten",
    "is_nested",
    "map_structure",
    "pack_sequence_as",
]


def flatten(structure: PyTree) -> list[Any]:
    """Returns the leaves of a structure, in the order of its keys.

    Variables, per-replica values and ``None`` are leaves.

    JAX equivalent: ``jax.tree.leaves``, which returns values in place of variables, and drops ``None``.

    >>> import stratagem as sg
    >>> model = {"w": sg.Variable(2.0, name="w"), "b": sg.Variable(1.0, name="b")}
    >>> [v.name for v in sg.nest.flatten(model)]
    ['b:0', 'w:0']
    """
    return structures.leaves_of(structure, _is_leaf)


def map_structure(func: Callable[..., Any], *structure: PyTree) -> Any:
    """Applies ``func`` to the corresponding leaves of all structures.

    JAX equivalent: ``jax.tree.map``, which passes the values of variables to ``func``.

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


def pack_sequence_as(structure: PyTree, flat_sequence: Sequence[Any]) -> Any:
    """Returns a structure of this form with other leaves, in the order of ``flatten``.

    JAX equivalent: ``jax.tree.unflatten``.

    >>> pack_sequence_as({"b": 0, "a": (0, 0)}, [1, 2, 3])
    {'a': (1, 2), 'b': 3}

    Raises:
        InvalidArgumentError: If the number of leaves differs from the structure's.
    """
    leaves, form = structures.flatten(structure, _is_leaf)
    if len(flat_sequence) != len(leaves):
        raise InvalidArgumentError(
            f"The structure has {len(leaves)} leaves, got {len(flat_sequence)}: {structure!r}."
        )
    return jax.tree.unflatten(form, list(flat_sequence))


def assert_same_structure(nest1: PyTree, nest2: PyTree) -> None:
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


def is_nested(structure: PyTree) -> bool:
    """Returns whether ``structure`` is a nested structure and not a leaf.

    >>> is_nested([1]), is_nested(1), is_nested("ab")
    (True, False, False)
    """
    leaves, _ = structures.flatten(structure, _is_leaf)
    return not (len(leaves) == 1 and leaves[0] is structure)


def _is_leaf(value: Leaf) -> bool:
    return value is None or isinstance(value, structures.ValueLeaf)
