"""``Dataset``: elements, and how to get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stratagem._src.core.errors import CardinalityError, InvalidArgumentError
from stratagem._src.data.checks import as_name, parallelism
from stratagem._src.data.conversion import to_element
from stratagem._src.data.dataset_sources import DatasetSources
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.options import AUTOTUNE, INFINITE_CARDINALITY, SHARD_HINT, Options
from stratagem._src.data.plan.node import Node, known
from stratagem._src.data.structure import describe, flatten, map_structure, same_structure
from stratagem._src.data.transforms.batch import Batch
from stratagem._src.data.transforms.cache import Cache
from stratagem._src.data.transforms.concatenate import Concatenate
from stratagem._src.data.transforms.element_function import call_with
from stratagem._src.data.transforms.enumerate import Enumerate
from stratagem._src.data.transforms.filter import Filter
from stratagem._src.data.transforms.interleave import Interleave
from stratagem._src.data.transforms.map import Map
from stratagem._src.data.transforms.padded_batch import PaddedBatch
from stratagem._src.data.transforms.prefetch import Prefetch
from stratagem._src.data.transforms.rebatch import Rebatch
from stratagem._src.data.transforms.repeat import Repeat
from stratagem._src.data.transforms.shard import Shard, ShardHint
from stratagem._src.data.transforms.shuffle import Shuffle
from stratagem._src.data.transforms.take_skip import Skip, Take
from stratagem._src.data.transforms.unbatch import Unbatch
from stratagem._src.data.transforms.with_options import WithOptions
from stratagem._src.data.transforms.zip import Zip

__all__ = ["Dataset"]


class Dataset(DatasetSources):
    """A sequence of elements, each an array or a nest of arrays, made when they are asked for.

    A dataset is a plan: every method returns a new one, and nothing is read until it is iterated
    over. Elements hold NumPy arrays, some of them read-only, NumPy scalars and, for strings,
    ``bytes``.

    Every method takes a ``name``, which ``repr`` shows.

    JAX equivalent: none; batches go to devices with ``jax.device_put``.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(10).map(lambda x: x * 2).batch(4)
    >>> [batch.tolist() for batch in dataset]
    [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    """

    def __init__(self, plan: Node, name: str | None = None) -> None:
        if not isinstance(plan, Node):
            raise InvalidArgumentError(
                "A Dataset is made by its methods, such as Dataset.from_tensor_slices(arrays), got "
                f"{plan!r}."
            )
        self.plan = plan
        self._name = as_name(name)

    @staticmethod
    def _of(plan: Node, name: str | None) -> Dataset:
        return Dataset(plan, name)

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self.plan)

    def __len__(self) -> int:
        size = self.cardinality()
        if not known(size):
            kind = "infinite" if size == INFINITE_CARDINALITY else "not known"
            raise CardinalityError(f"The length of {self!r} is {kind}. Use cardinality().")
        return size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}:"
        return f"<Dataset{name} {self.plan.describe()}>"

    @property
    def element_spec(self) -> Any:
        """The nest of ``TensorSpec`` of an element.

        After ``map``, ``flat_map`` and ``interleave`` it is found by calling their function on the
        first element.

        >>> Dataset.range(10).batch(4).element_spec
        TensorSpec(shape=(None,), dtype=int64, name=None)
        """
        return self.plan.element_spec

    def cardinality(self) -> int:
        """Returns the number of elements, ``INFINITE_CARDINALITY`` or ``UNKNOWN_CARDINALITY``.

        >>> Dataset.range(10).batch(4).cardinality()
        3
        """
        return self.plan.cardinality()

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over the elements as NumPy arrays.

        >>> list(Dataset.range(3).as_numpy_iterator())
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        return iter(self)

    def options(self) -> Options:
        """Returns the options of this dataset and of those it is made from.

        >>> Dataset.range(3).options().deterministic is None
        True
        """
        return self.plan.options()

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """Returns the same elements with options that override earlier ones.

        >>> from stratagem.data import Options
        >>> options = Options(deterministic=True)
        >>> Dataset.range(3).with_options(options).options().deterministic
        True
        """
        return Dataset(WithOptions(self.plan, options), name)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Returns ``transformation_func(self)``.

        >>> list(Dataset.range(10).apply(lambda dataset: dataset.take(2)))
        [np.int64(0), np.int64(1)]

        Raises:
            InvalidArgumentError: If that is not a dataset.
        """
        return _dataset(transformation_func(self), "transformation_func")

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns ``map_func`` of every element; the components of a tuple are separate arguments.

        A function of numbers that JAX can trace, twice with the same result and without asking a clock
        or a random generator, runs as one ``jit(vmap(map_func))`` per batch, on the host, if that
        gives the same bits. Side effects of Python code, as in tf.data, happen while it is traced and
        not for every element; what must happen for each belongs into the loop over the dataset.

        >>> list(Dataset.range(3).map(lambda x: x + 1))
        [np.int64(1), np.int64(2), np.int64(3)]

        Args:
            map_func: Takes NumPy arrays, returns a nest of arrays and numbers.
            num_parallel_calls: How many calls run at a time, ahead of the consumer.
            deterministic: ``False`` allows another order; the order is kept all the same.
            name: Shown by ``repr``.
        """
        return Dataset(Map(self.plan, map_func, num_parallel_calls), name)

    def flat_map(self, map_func: Callable[..., Dataset], name: str | None = None) -> Dataset:
        """Returns the elements of the dataset that ``map_func`` makes of each element, in order.

        >>> list(Dataset.range(3).flat_map(lambda n: Dataset.range(n)))
        [np.int64(0), np.int64(0), np.int64(1)]
        """
        return Dataset(Interleave(self.plan, _plan_maker(map_func), cycle_length=1), name)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns elements of the datasets that ``map_func`` makes, some of each in turn.

        >>> dataset = Dataset.range(2).interleave(
        ...     lambda n: Dataset.from_tensors(n).repeat(3), cycle_length=2, block_length=2)
        >>> [int(n) for n in dataset]
        [0, 0, 1, 1, 0, 1]

        Args:
            map_func: Makes a dataset from an element.
            cycle_length: How many datasets are read at a time; 4 by default.
            block_length: How many elements each gives in its turn; 1 by default.
            num_parallel_calls: How many of them are read on threads of their own.
            deterministic: ``False`` allows another order; the order is kept all the same.
            name: Shown by ``repr``.
        """
        plan = Interleave(
            self.plan,
            _plan_maker(map_func),
            AUTOTUNE if cycle_length is None else cycle_length,
            1 if block_length is None else block_length,
            num_parallel_calls,
        )
        return Dataset(plan, name)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Returns the elements for which ``predicate`` is true.

        >>> list(Dataset.range(5).filter(lambda x: x % 2 == 0))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return Dataset(Filter(self.plan, predicate), name)

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns batches of ``batch_size`` elements, stacked.

        >>> [batch.tolist() for batch in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether a last, smaller batch is left out.
            num_parallel_calls: How many batches are made ahead of the consumer.
            deterministic: ``False`` allows another order; the order is kept all the same.
            name: Shown by ``repr``.
        """
        batched = Dataset(Batch(self.plan, batch_size, drop_remainder), name)
        ahead = parallelism("num_parallel_calls", num_parallel_calls)
        return batched if ahead is None else batched.prefetch(ahead, name)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns batches of elements of different sizes, padded at their ends.

        >>> dataset = Dataset.range(1, 4).map(lambda n: [int(n)] * int(n)).padded_batch(3)
        >>> next(iter(dataset)).tolist()
        [[1, 0, 0], [2, 2, 0], [3, 3, 3]]

        Args:
            batch_size: Elements per batch.
            padded_shapes: A nest of shapes; ``None`` in a shape, or for all, pads to the longest.
            padding_values: A nest of scalars, or one for all; 0 and ``b""`` by default.
            drop_remainder: Whether a last, smaller batch is left out.
            name: Shown by ``repr``.
        """
        return Dataset(
            PaddedBatch(self.plan, batch_size, padded_shapes, padding_values, drop_remainder), name
        )

    def unbatch(self, name: str | None = None) -> Dataset:
        """Returns the rows of every element.

        >>> list(Dataset.range(4).batch(3).unbatch())
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]
        """
        return Dataset(Unbatch(self.plan), name)

    def rebatch(
        self,
        batch_size: int | Sequence[int],
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns the rows of every element in batches of other sizes.

        >>> [batch.tolist() for batch in Dataset.range(7).batch(4).rebatch([2, 1])]
        [[0, 1], [2], [3, 4], [5], [6]]

        Args:
            batch_size: Rows per batch, or a sequence of sizes that is used over and over; a size of
                0 gives a batch without rows.
            drop_remainder: Whether a last, smaller batch is left out.
            name: Shown by ``repr``.
        """
        return Dataset(Rebatch(self.plan, batch_size, drop_remainder), name)

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns the elements in a random order: each is drawn from a buffer of the next ones.

        With a buffer as large as the dataset every order is equally likely; with a smaller one no
        element comes out more than ``buffer_size - 1`` places early.

        >>> sorted(int(x) for x in Dataset.range(5).shuffle(5, seed=0))
        [0, 1, 2, 3, 4]

        Args:
            buffer_size: Size of the buffer.
            seed: Makes the orders reproducible.
            reshuffle_each_iteration: Whether each iteration, and each epoch of a later ``repeat``,
                has another order; it has by default.
            name: Shown by ``repr``.
        """
        reshuffle = True if reshuffle_each_iteration is None else bool(reshuffle_each_iteration)
        return Dataset(Shuffle(self.plan, buffer_size, seed, reshuffle), name)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """Returns the elements ``count`` times, or for ever for ``None`` and -1.

        >>> [int(x) for x in Dataset.range(2).repeat(2)]
        [0, 1, 0, 1]
        """
        return Dataset(Repeat(self.plan, count), name)

    def take(self, count: int, name: str | None = None) -> Dataset:
        """Returns the first ``count`` elements, or all for -1.

        >>> [int(x) for x in Dataset.range(5).take(2)]
        [0, 1]
        """
        return Dataset(Take(self.plan, count), name)

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """Returns all elements but the first ``count``, or none for -1.

        >>> [int(x) for x in Dataset.range(5).skip(3)]
        [3, 4]
        """
        return Dataset(Skip(self.plan, count), name)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Returns every ``num_shards``-th element, from element ``index`` on.

        Put it before ``shuffle``: the shards of differently shuffled datasets overlap. With
        ``SHARD_HINT`` for both arguments it only marks where ``AutoShardPolicy.HINT`` shards.

        >>> [int(x) for x in Dataset.range(5).shard(2, 1)]
        [1, 3]

        Raises:
            InvalidArgumentError: If ``index`` is not in ``[0, num_shards)``.
        """
        if num_shards == index == SHARD_HINT:
            return Dataset(ShardHint(self.plan), name)
        return Dataset(Shard(self.plan, num_shards, index), name)

    @staticmethod
    def zip(*datasets: Any, name: str | None = None) -> Dataset:
        """Returns nests with one element of each dataset, until the shortest ends.

        >>> a, b = Dataset.range(2), Dataset.range(5, 9)
        >>> [(int(x), int(y)) for x, y in Dataset.zip((a, b))]
        [(0, 5), (1, 6)]

        Args:
            *datasets: Datasets, or one nest of datasets.
            name: Shown by ``repr``.
        """
        nest = datasets[0] if len(datasets) == 1 else datasets
        plans = [_dataset(leaf, "zip() argument").plan for leaf in flatten(nest)]
        if not plans:
            raise InvalidArgumentError("zip needs at least one dataset, got none.")
        return Dataset(Zip(tuple(plans), map_structure(lambda _: 0, nest)), name)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Returns the elements of this dataset, then those of another.

        >>> [int(x) for x in Dataset.range(2).concatenate(Dataset.range(3))]
        [0, 1, 0, 1, 2]
        """
        return Dataset(Concatenate(self.plan, _dataset(dataset, "dataset").plan), name)

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Returns pairs of a number, counting from ``start``, and an element.

        >>> [(int(i), int(x)) for i, x in Dataset.range(5, 7).enumerate(start=1)]
        [(1, 5), (2, 6)]
        """
        return Dataset(Enumerate(self.plan, start), name)

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Returns the same elements, made once and kept in memory or in a file.

        The first complete iteration fills the cache. Cached arrays are read-only.

        >>> dataset = Dataset.range(3).cache()
        >>> [int(x) for x in dataset] == [int(x) for x in dataset]
        True

        Args:
            filename: A file to keep the elements in, for this and later processes.
            name: Shown by ``repr``.
        """
        return Dataset(Cache(self.plan, filename), name)

    def prefetch(self, buffer_size: int, name: str | None = None) -> Dataset:
        """Returns the same elements, the next ``buffer_size`` made on a background thread.

        The thread ends with its iterator. An exception in it is raised where its element is due.

        >>> [int(x) for x in Dataset.range(3).prefetch(2)]
        [0, 1, 2]

        Args:
            buffer_size: How many elements to make ahead; 0 for none, or ``AUTOTUNE``.
            name: Shown by ``repr``.
        """
        return Dataset(Prefetch(self.plan, buffer_size), name)

    def reduce(
        self,
        initial_state: Any,
        reduce_func: Callable[[Any, Any], Any],
        name: str | None = None,
    ) -> Any:
        """Returns the last of ``state = reduce_func(state, element)`` over all elements.

        >>> int(Dataset.range(5).reduce(0, lambda state, x: state + x))
        10

        Raises:
            InvalidArgumentError: If the structure of the state changes.
        """
        as_name(name)
        state = to_element(initial_state)
        for element in self:
            new_state = to_element(reduce_func(state, element))
            if not same_structure(state, new_state):
                raise InvalidArgumentError(
                    f"reduce_func must return a state like the initial one, {describe(state)}, got "
                    f"{describe(new_state)}."
                )
            state = new_state
        return state


def _dataset(value: Any, name: str) -> Dataset:
    if not isinstance(value, Dataset):
        raise InvalidArgumentError(f"{name} must be, or return, a Dataset, got {value!r}.")
    return value


def _plan_maker(map_func: Callable[..., Dataset]) -> Callable[[Any], Node]:
    if not callable(map_func):
        raise InvalidArgumentError(f"map_func must be callable, got {map_func!r}.")
    return lambda element: _dataset(call_with(map_func, element), "map_func").plan
