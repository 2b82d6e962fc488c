"""Shards a dataset between workers by rewriting its plan."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from stratagem._src.core.errors import NotFoundError
from stratagem._src.data.checks import at_least
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Node, known, rewrite, walk
from stratagem._src.data.plan.run import Seeded
from stratagem._src.data.sources.files import ReadFiles
from stratagem._src.data.transforms.cache import Cache
from stratagem._src.data.transforms.directed_interleave import DirectedInterleave
from stratagem._src.data.transforms.interleave import Interleave
from stratagem._src.data.transforms.map import Map
from stratagem._src.data.transforms.prefetch import Prefetch
from stratagem._src.data.transforms.repeat import Repeat
from stratagem._src.data.transforms.shard import Shard, ShardHint
from stratagem._src.data.transforms.shuffle import Shuffle
from stratagem._src.data.transforms.with_options import WithOptions

__all__ = [
    "after_iterations",
    "num_files",
    "seed_shuffles",
    "shard_at_hints",
    "shard_by_data",
    "shard_by_file",
]

# A shard moves below these nodes, next to the source of the file names. Above an unseeded shuffle each
# worker would shard a different order, and the shards would overlap.
_KEEP_ABOVE = (Cache, Map, Prefetch, Repeat, Shuffle, WithOptions)

_SEED_STRIDE = 1 << 16
"""Distance between the seeds of two callers, so that their shuffles do not share seeds."""


def num_files(dataset: Dataset) -> int | None:
    """Returns the number of files that a dataset reads, or ``None`` if it reads none.

    With several file sources, as below a ``zip``, the one with the fewest files counts. If the number of
    names is unknown, they are read and counted; an infinite source has ``sys.maxsize``.

    >>> from stratagem.data import Dataset
    >>> num_files(Dataset.range(3)) is None
    True
    """
    counts = [_count(_source_of_names(node)) for node in _readers(dataset.plan)]
    return min(counts, default=None)


def shard_by_file(dataset: Dataset, num_shards: int, index: int) -> Dataset:
    """Returns the dataset restricted to every ``num_shards``-th file.

    The shard goes below any ``shuffle`` and ``repeat`` of the file names, so the shards of all
    workers are disjoint and complete for any seeds.

    >>> import pathlib, tempfile
    >>> from stratagem.data import Dataset, TextLineDataset
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in "abc":
    ...     _ = (folder / name).write_text(name)
    >>> lines = TextLineDataset(Dataset.list_files(str(folder / "*"), shuffle=False))
    >>> list(shard_by_file(lines, 2, 0)), list(shard_by_file(lines, 2, 1))
    ([b'a', b'c'], [b'b'])

    Raises:
        NotFoundError: If the dataset reads no files.
    """
    if num_files(dataset) is None:
        raise NotFoundError(
            "Sharding by file needs a dataset that reads files, got "
            f"{dataset.plan.describe()}. Use AutoShardPolicy.DATA."
        )

    def change(node: Node) -> Node:
        if reads_files(node):
            return node.over((_sharded(node.inputs[0], num_shards, index),))
        replicated, sharded = _replicated_and_sharded(node)
        kept = [rewrite(child, lambda part: part.fork()) for child in replicated]
        return node.over((*kept, *(change(child) for child in sharded)))

    return Dataset(change(dataset.plan))


def shard_by_data(dataset: Dataset, num_shards: int, index: int) -> Dataset:
    """Returns every ``num_shards``-th element of the dataset, as ``Dataset.shard`` does.

    Each shard counts its own iterations: a ``shuffle`` with a seed has the same order in all of them,
    even if they are in one process.

    >>> from stratagem.data import Dataset
    >>> shuffled = Dataset.range(6).shuffle(6, seed=3)
    >>> shards = [list(shard_by_data(shuffled, 2, index)) for index in range(2)]
    >>> sorted(int(number) for shard in shards for number in shard)
    [0, 1, 2, 3, 4, 5]
    """
    plan = rewrite(dataset.plan, lambda node: node.fork())
    return Dataset(Shard(plan, num_shards, index))


def seed_shuffles(dataset: Dataset, seed: int) -> Dataset:
    """Returns the dataset with a seed for every ``shuffle`` that has none, including in ``flat_map``.

    Workers that shard the same shuffled data must agree on its order: pass the same seed on all of them.

    >>> from stratagem.data import Dataset
    >>> workers = [seed_shuffles(Dataset.range(9).shuffle(9), 42) for _ in range(2)]
    >>> [int(x) for x in workers[0]] == [int(x) for x in workers[1]]
    True
    """
    numbers = itertools.count(at_least(0, "seed", seed) * _SEED_STRIDE)

    def change(node: Node) -> Node:
        if isinstance(node, Seeded) and node.seed.is_random:
            return node.seeded(next(numbers))
        return node

    return Dataset(rewrite(dataset.plan, change))


def after_iterations(dataset: Dataset, number: int) -> Dataset:
    """Returns the dataset as it is after ``number`` iterations.

    >>> from stratagem.data import Dataset
    >>> shuffled = Dataset.range(9).shuffle(9, seed=1)
    >>> again = after_iterations(shuffled, 1)
    >>> iterations = [[int(x) for x in shuffled] for _ in range(2)]
    >>> [int(x) for x in again] == iterations[1]
    True
    """

    def change(node: Node) -> Node:
        return node.fork(number) if isinstance(node, Seeded) else node

    return Dataset(rewrite(dataset.plan, change))


def shard_at_hints(dataset: Dataset, num_shards: int, index: int) -> Dataset:
    """Returns the dataset with each ``shard(SHARD_HINT, SHARD_HINT)`` replaced by a real shard.

    A dataset without hints is returned as it is.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import SHARD_HINT
    >>> hinted = Dataset.range(6).shard(SHARD_HINT, SHARD_HINT).batch(2)
    >>> [batch.tolist() for batch in shard_at_hints(hinted, 2, 1)]
    [[1, 3], [5]]
    """

    def change(node: Node) -> Node:
        return Shard(node.inputs[0], num_shards, index) if isinstance(node, ShardHint) else node

    return Dataset(rewrite(dataset.plan, change))


def reads_files(node: Node) -> bool:
    """Returns whether a node turns file names into elements.

    A ``flat_map`` or ``interleave`` does if its function returns a reader for the first element.
    """
    if isinstance(node, ReadFiles):
        return True
    if not isinstance(node, Interleave) or node.inputs[0].cardinality() == 0:
        return False
    return any(isinstance(inner, ReadFiles) for inner in walk(node.first_plan()))


def _replicated_and_sharded(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Returns the inputs that every worker reads in full, and the inputs that are sharded.

    Only the choices of ``choose_from_datasets`` and ``sample_from_datasets`` are read in full: each
    worker makes all choices, for its own files.
    """
    count = 1 if isinstance(node, DirectedInterleave) else 0
    return node.inputs[:count], node.inputs[count:]


def _readers(node: Node) -> Iterator[Node]:
    """Yields the outermost readers; a reader whose file names come from another reader hides that one."""
    if reads_files(node):
        yield node
        return
    for child in _replicated_and_sharded(node)[1]:
        yield from _readers(child)


def _source_of_names(node: Node) -> Node:
    names = node.inputs[0]
    while isinstance(names, _KEEP_ABOVE):
        names = names.inputs[0]
    return names


def _count(names: Node) -> int:
    count = names.cardinality()
    if count == INFINITE_CARDINALITY:
        return sys.maxsize
    return count if known(count) else sum(1 for _ in Dataset(names))


def _sharded(names: Node, num_shards: int, index: int) -> Node:
    if isinstance(names, _KEEP_ABOVE):
        return names.over((_sharded(names.inputs[0], num_shards, index),))
    return Shard(names, at_least(1, "num_shards", num_shards), index)
