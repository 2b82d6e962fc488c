"""The methods of ``Dataset`` that select, order and combine elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.dataset_base import DatasetBase, plan_of
from stratagem._src.data.options import SHARD_HINT
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.transforms.concatenate import Concatenate
from stratagem._src.data.transforms.enumerate import Enumerate
from stratagem._src.data.transforms.ignore_errors import IgnoreErrors
from stratagem._src.data.transforms.repeat import Repeat
from stratagem._src.data.transforms.shard import Shard, ShardHint
from stratagem._src.data.transforms.shuffle import Shuffle
from stratagem._src.data.transforms.take_skip import Skip, Take
from stratagem._src.data.transforms.unique import Unique
from stratagem._src.data.transforms.zip import Zip

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetOrder"]


class DatasetOrder(DatasetBase):
    """Transformations that do not change the elements themselves."""

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns the elements in random order, drawn from a buffer of the next ``buffer_size``.

        With a buffer as large as the dataset every order is equally likely; with a smaller one an
        element moves forward by at most ``buffer_size - 1`` positions.

        >>> from stratagem.data import Dataset
        >>> sorted(int(x) for x in Dataset.range(5).shuffle(5, seed=0))
        [0, 1, 2, 3, 4]

        Args:
            buffer_size: Size of the buffer.
            seed: Makes the orders reproducible.
            reshuffle_each_iteration: Whether each iteration, and each epoch of a later ``repeat``,
                has a different order, as by default.
            name: Shown by ``repr``.
        """
        reshuffle = True if reshuffle_each_iteration is None else bool(reshuffle_each_iteration)
        return self._from_plan(Shuffle(self.plan, buffer_size, seed, reshuffle), name)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """Returns the elements ``count`` times, or forever for ``None`` and -1.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(2).repeat(2)]
        [0, 1, 0, 1]
        """
        return self._from_plan(Repeat(self.plan, count), name)

    def take(self, count: int, name: str | None = None) -> Dataset:
        """Returns the first ``count`` elements, or all for -1.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(5).take(2)]
        [0, 1]
        """
        return self._from_plan(Take(self.plan, count), name)

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """Returns all elements but the first ``count``, or none for -1.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(5).skip(3)]
        [3, 4]
        """
        return self._from_plan(Skip(self.plan, count), name)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Returns every ``num_shards``-th element, from element ``index`` on.

        Put it before ``shuffle``: the shards of differently shuffled datasets overlap. With
        ``SHARD_HINT`` for both arguments it only marks where ``AutoShardPolicy.HINT`` shards.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(5).shard(2, 1)]
        [1, 3]

        Raises:
            InvalidArgumentError: If ``index`` is not in ``[0, num_shards)``.
        """
        if num_shards == index == SHARD_HINT:
            return self._from_plan(ShardHint(self.plan), name)
        return self._from_plan(Shard(self.plan, num_shards, index), name)

    @classmethod
    def zip(cls, *args: PyTree, datasets: PyTree = None, name: str | None = None) -> Dataset:
        """Returns nests with one element of each dataset, until the shortest ends.

        >>> from stratagem.data import Dataset
        >>> a, b = Dataset.range(2), Dataset.range(5, 9)
        >>> [(int(x), int(y)) for x, y in Dataset.zip((a, b))]
        [(0, 5), (1, 6)]

        Args:
            *args: Datasets, or one nest of datasets.
            datasets: The same nest, under its older name.
            name: Shown by ``repr``.
        """
        if datasets is not None:
            if args:
                raise InvalidArgumentError("zip takes either datasets or datasets=, got both.")
            args = (datasets,)
        nest = args[0] if len(args) == 1 else args
        plans = [plan_of(leaf, "zip() argument") for leaf in flatten(nest)]
        if not plans:
            raise InvalidArgumentError("zip needs at least one dataset, got none.")
        return cls._from_plan(Zip(tuple(plans), map_structure(lambda _: 0, nest)), name)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Returns the elements of this dataset, then those of another.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(2).concatenate(Dataset.range(3))]
        [0, 1, 0, 1, 2]
        """
        return self._from_plan(Concatenate(self.plan, plan_of(dataset, "dataset")), name)

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Returns pairs of an index, counting from ``start``, and an element.

        >>> from stratagem.data import Dataset
        >>> [(int(i), int(x)) for i, x in Dataset.range(5, 7).enumerate(start=1)]
        [(1, 5), (2, 6)]
        """
        return self._from_plan(Enumerate(self.plan, start), name)

    def unique(self, name: str | None = None) -> Dataset:
        """Returns every distinct element once, at its first occurrence.

        All distinct elements stay in memory. An iterator is restored by reading from the start again.

        Differs from tf.data: also supports all integer dtypes, bools and nests of them.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()]
        [1, 37, 2]
        """
        return self._from_plan(Unique(self.plan), name)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Dataset:
        """Skips elements that raise an error.

        Put it directly after the transformation that may fail: an error drops a whole batch, and a
        corrupt record drops the rest of its file. An error that repeats at the same position is raised.

        >>> from stratagem.data import Dataset
        >>> def inverse(x):
        ...     return 1 / int(x)
        >>> len(list(Dataset.range(4).map(inverse).ignore_errors()))
        3

        Args:
            log_warning: Whether errors are logged.
            name: Shown by ``repr``.
        """
        return self._from_plan(IgnoreErrors(self.plan, log_warning), name)
