"""Arrays of NumPy that a call is given: checked, and its own from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.int64_guard import narrowed
from stratagem._src.core.owned_memory import owned
from stratagem._src.data.plan.aligned import copy_of
from stratagem._src.values.distributed_values import is_value_leaf

__all__ = ["HandedOver", "as_they_are", "handed_over", "taken"]


def taken(value: Any) -> Any:
    """Returns a value that is about to become a JAX array; a copy of a NumPy array that can be changed.

    JAX reads memory of the host after the call that was given it has returned, or makes it the memory of
    its own array.

    Raises:
        InvalidArgumentError: If it is of NumPy, with whole numbers that JAX would cut.
    """
    value = narrowed(value)
    return owned(value, copy_of) if isinstance(value, np.ndarray) else value


def as_they_are(tree: Any) -> Any:
    """Returns a structure with copies of the NumPy arrays in it that can be changed.

    For what an eager replica hands over: the next one may fill the same buffer before all have come.
    """
    leaves, structure = structures.flatten(tree, is_value_leaf)
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return tree
    copies = [owned(leaf, copy_of) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, copies)


class HandedOver(NamedTuple):
    """What an eager replica hands over.

    Attributes:
        given: The structure itself.
        copied: The same as it was then.
    """

    given: Any
    copied: Any

    @classmethod
    def of(cls, tree: Any) -> HandedOver:
        """Returns what a replica hands over with ``tree``."""
        return cls(tree, as_they_are(tree))


def handed_over(payloads: Sequence[HandedOver]) -> list[Any]:
    """Returns a structure for each replica, in which arrays are as they were when handed over.

    An array that is one object in all replicas, and that none of them has changed, stays that object.
    """
    given, copied = (
        [structures.flatten(tree, is_value_leaf) for tree in trees]
        for trees in zip(*payloads, strict=True)
    )
    if any(structure != given[0][1] for _, structure in given):
        return [payload.copied for payload in payloads]
    stay = [
        all(leaf is originals[0] for leaf in originals)
        and all(_equal(c, copies[0]) for c in copies)
        for originals, copies in zip(
            zip(*(leaves for leaves, _ in given), strict=True),
            zip(*(leaves for leaves, _ in copied), strict=True),
            strict=True,
        )
    ]
    return [
        jax.tree.unflatten(
            structure, [o if s else c for o, c, s in zip(own, copies, stay, strict=True)]
        )
        for (own, structure), (copies, _) in zip(given, copied, strict=True)
    ]


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and a.tobytes() == b.tobytes())
