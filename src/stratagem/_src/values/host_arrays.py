"""NumPy arrays from the caller: checked, and copied if they are writable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.owned_memory import owned
from stratagem._src.core.types import ArrayLike, Leaf, PyTree
from stratagem._src.data.plan.aligned_arrays import copy_of
from stratagem._src.values.distributed_values import is_value_leaf

__all__ = ["HostArraySnapshot", "copy_host_arrays", "merge_snapshots", "own_host_array"]


def own_host_array(value: ArrayLike) -> Any:
    """Returns a value that is about to become a JAX array; a writable NumPy array is copied.

    JAX may read host memory after the call has returned, or alias it in its own array: then a later write
    by the caller would change the result.

    Raises:
        InvalidArgumentError: If it is a NumPy array with 64-bit integers that JAX would truncate.
    """
    value = guard_int64(value)
    return owned(value, copy_of) if isinstance(value, np.ndarray) else value


def copy_host_arrays(tree: PyTree) -> Any:
    """Returns a structure with its writable NumPy arrays copied.

    For the results and arguments of eager replicas: the next replica may fill the same buffer before all
    replicas have arrived.
    """
    leaves, structure = structures.flatten(tree, is_value_leaf)
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return tree
    copies = [owned(leaf, copy_of) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, copies)


class HostArraySnapshot(NamedTuple):
    """A structure that an eager replica passes to ``merge_call``, with a snapshot of its NumPy arrays.

    Attributes:
        given: The structure itself.
        copied: The structure with its writable arrays copied.
    """

    given: Any
    copied: Any

    @classmethod
    def of(cls, tree: PyTree) -> HostArraySnapshot:
        """Returns a snapshot of ``tree``."""
        return cls(tree, copy_host_arrays(tree))


def merge_snapshots(payloads: Sequence[HostArraySnapshot]) -> list[Any]:
    """Returns a structure for each replica, with arrays as they were at the snapshot.

    An array that is the same object in all replicas, and that none of them has changed, stays that object:
    so ``merge_call`` passes it on unwrapped.
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


def _equal(a: Leaf, b: Leaf) -> bool:
    return a is b or (isinstance(a, np.ndarray) and a.tobytes() == b.tobytes())
