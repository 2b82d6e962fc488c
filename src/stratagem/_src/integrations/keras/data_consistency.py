"""Checks that all workers pass the same data to Keras, because each computes its own rows of it.

Otherwise rows of different arrays would silently be mixed into one batch: for example, if one worker has
drawn one random number more than another before the data, or reads different files.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.integrations.keras.keras_internals import KerasModel
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

__all__ = ["BatchComparison", "check_equal_arrays", "comparison_of"]

_WORDS_IN_BLOCK = 512
_MAX_BATCHES_APART = 64

_NAMES = ("x", "y", "sample_weight")


def check_equal_arrays(data: PyTree) -> None:
    """Checks that all workers have the same arrays.

    Args:
        data: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, each an arbitrary structure of arrays.

    Raises:
        ReplicaMismatchError: If not. It names the arrays and the workers.
    """
    mine = [[name, *_checksum(array)] for name, array in _named(data)]
    every = process_monitor().all_gather_object("keras arrays", mine, "arrays that Keras is given")
    if all(arrays == every[0] for arrays in every):
        return
    leaders = {name: rest for name, *rest in every[0]}
    found = []
    for worker, arrays in enumerate(every):
        of_worker = {name: rest for name, *rest in arrays}
        for name in {**leaders, **of_worker}:
            if leaders.get(name) != of_worker.get(name):
                found.append(
                    f"{name} of worker {worker} {_difference(leaders.get(name), of_worker.get(name))}"
                )
    raise ReplicaMismatchError(
        "Every worker must pass the same arrays to Keras, because each computes its own rows of them, but "
        f"{'; '.join(found)}. {_ADVICE}"
    )


_ADVICE = (
    "Draw random data from a separate generator, numpy.random.default_rng(seed), with the same seed on "
    "every worker, and read the same files. If each worker has its own rows, pass "
    "strategy.distribute_datasets_from_function(...) instead of arrays."
)


class BatchComparison:
    """Compares the sequences of batches of all workers.

    A round trip between the workers takes longer than a checksum. So checksums are compared after 1, 2, 4,
    8 … and every 64 batches, for all batches since the last comparison, and in ``finish``.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sums: list[Any] = []

    def restart(self) -> None:
        """Compares pending batches and restarts the count; all workers must call it."""
        self.finish()
        self._count = 0

    def add(self, batch: PyTree) -> None:
        """Adds the next batch of this worker.

        Raises:
            ReplicaMismatchError: If batches differ between the workers.
        """
        self._sums.append([[name, *_checksum(array)] for name, array in _named(batch)])
        self._count += 1
        if not self._count & (self._count - 1) or len(self._sums) >= _MAX_BATCHES_APART:
            self.finish()

    def finish(self) -> None:
        """Compares the pending batches; all workers must call it.

        Raises:
            ReplicaMismatchError: If they differ.
        """
        if not self._sums:
            return
        first, sums, self._sums = self._count - len(self._sums), self._sums, []
        every = process_monitor().all_gather_object(
            "keras batches", sums, "batches that Keras is given"
        )
        for number, of_all in enumerate(zip(*every), first):  # noqa: B905 - the counts are compared elsewhere
            for worker, arrays in enumerate(of_all):
                if arrays != of_all[0]:
                    raise ReplicaMismatchError(
                        "Every worker must pass the same batches to Keras, because each computes its own "
                        f"rows of them, but batch {number} of worker {worker} differs from the leader's "
                        f"in {_names_that_differ(of_all[0], arrays)}. {_ADVICE}"
                    )


_comparisons: WeakIdentityMap[Any, BatchComparison] = WeakIdentityMap()


def comparison_of(model: KerasModel) -> BatchComparison:
    """Returns the comparison of the batches of ``train_on_batch`` and similar methods of a model."""
    return _comparisons.setdefault(model, BatchComparison())


def _named(data: PyTree) -> list[tuple[str, Any]]:
    """Returns the arrays of a batch or of the whole data, with names for messages."""
    parts = data if isinstance(data, (tuple, list)) else (data,)
    names = _NAMES if len(parts) <= len(_NAMES) else [f"[{i}]" for i in range(len(parts))]
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, part in zip(names, parts)  # noqa: B905 - targets and weights may be left out
        for path, leaf in jax.tree_util.tree_leaves_with_path(part, is_leaf=_is_of_all_workers)
        if not _is_of_all_workers(leaf)
    ]


def _is_of_all_workers(leaf: Leaf) -> bool:
    """Returns whether a value is already distributed over the workers."""
    if isinstance(leaf, jax.Array):
        return not leaf.is_fully_addressable
    return isinstance(leaf, (PerReplica, Mirrored))


def _checksum(leaf: Leaf) -> list[Any]:
    """Returns the shape, the dtype and a checksum that depends on the values and their order.

    The checksum covers the sum of each block, and the sums over blocks of each position. That takes a fifth
    of the time of a checksum of all bytes (10 GB/s), and a value that moves changes one of the sums.
    """
    array = np.asarray(leaf)
    described = [list(array.shape), array.dtype.str]
    if array.dtype.hasobject:
        return described  # its bytes are pointers
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    block = _WORDS_IN_BLOCK * 8
    whole = content.size // block * block
    blocks = content[:whole].view(np.uint64).reshape(-1, _WORDS_IN_BLOCK)
    checksum = zlib.crc32(content[whole:].data)
    for axis in (0, 1):
        checksum = zlib.crc32(blocks.sum(axis).data, checksum)
    return [*described, checksum]


def _difference(leaders: list[Any] | None, own: list[Any] | None) -> str:
    if leaders is None or own is None:
        return "exists only on this worker or only on the leader"
    if leaders[:2] == own[:2]:
        return "has the leader's shape but different values"
    return (
        f"has shape {tuple(own[0])} and dtype {np.dtype(own[1])}, and the leader's has "
        f"{tuple(leaders[0])} and {np.dtype(leaders[1])}"
    )


def _names_that_differ(leaders: list[Any], own: list[Any]) -> str:
    ours, theirs = ({name: rest for name, *rest in arrays} for arrays in (leaders, own))
    return ", ".join(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
