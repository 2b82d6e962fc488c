"""The methods of ``Dataset`` that create one from arrays, generators and file names."""

from __future__ import annotations

import glob
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem._src.core.errors import NotFoundError
from stratagem._src.core.types import ArrayLike, DTypeLike, ElementSpec, PyTree
from stratagem._src.data.compressed_files import as_path
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.sources.counter import Counter
from stratagem._src.data.sources.generator import FromGenerator, signature_of
from stratagem._src.data.sources.random_numbers import RandomNumbers
from stratagem._src.data.sources.tensors import Range, Tensors, TensorSlices
from stratagem._src.data.transforms.shuffle import Shuffle

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetSources"]


class DatasetSources(DatasetBase):
    """Constructors from arrays, generators and file names."""

    @classmethod
    def from_tensors(cls, tensors: PyTree, name: str | None = None) -> Dataset:
        """Returns a dataset of one element.

        >>> from stratagem.data import Dataset
        >>> [x.tolist() for x in Dataset.from_tensors([1, 2])]
        [[1, 2]]

        Args:
            tensors: A nest of arrays; a list is one array. Python floats become float32, ints
                int32.
            name: Shown by ``repr``.
        """
        return cls._from_plan(Tensors(tensors), name)

    @classmethod
    def from_tensor_slices(cls, tensors: PyTree, name: str | None = None) -> Dataset:
        """Returns a dataset of the slices of arrays along their first dimension.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.from_tensor_slices([1, 2])]
        [1, 2]

        Args:
            tensors: A nest of arrays with the same first dimension; a list is one array. Python
                floats become float32, ints int32. NumPy arrays are copied unless they are read-only
                (``array.flags.writeable = False``, ``np.load(..., mmap_mode="r")``).
            name: Shown by ``repr``.
        """
        return cls._from_plan(TensorSlices(tensors), name)

    @classmethod
    def range(
        cls, *args: int, output_type: DTypeLike = np.int64, name: str | None = None
    ) -> Dataset:
        """Returns a dataset of the numbers of Python's ``range``, as int64.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.range(1, 7, 2)]
        [1, 3, 5]
        """
        return cls._from_plan(Range(*args, output_type=output_type), name)

    @classmethod
    def counter(
        cls,
        start: ArrayLike = 0,
        step: ArrayLike = 1,
        dtype: DTypeLike = np.int64,
        name: str | None = None,
    ) -> Dataset:
        """Returns an infinite dataset that counts from ``start`` in steps of ``step``.

        >>> from stratagem.data import Dataset
        >>> [int(x) for x in Dataset.counter(2, 3).take(4)]
        [2, 5, 8, 11]
        """
        return cls._from_plan(Counter(start, step, dtype), name)

    @classmethod
    def random(
        cls,
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns an infinite dataset of random integers from 0 to 2**32 - 1.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.random(seed=4).take(3)
        >>> list(dataset) == list(dataset)
        True

        Args:
            seed: Makes the numbers reproducible.
            rerandomize_each_iteration: Whether each iteration, and each epoch of a later ``repeat``,
                yields different numbers; by default they are the same.
            name: Shown by ``repr``.
        """
        return cls._from_plan(RandomNumbers(seed, rerandomize_each_iteration), name)

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: PyTree = None,
        output_shapes: PyTree = None,
        args: tuple[Any, ...] | None = None,
        output_signature: ElementSpec = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns a dataset of what ``generator(*args)`` yields; each iteration calls it again.

        Elements are cast to the declared types, as in tf.data: a float64 array to float32, integers to
        floats or to fewer bits. Differs from tf.data: values that a cast would change (a fraction or
        2**40 to int32, 1e10 to float16) raise.

        An iterator is restored by calling the generator and dropping the elements that were drawn
        before, so a generator should yield the same elements each time.

        >>> from stratagem.data import Dataset, TensorSpec
        >>> dataset = Dataset.from_generator(
        ...     lambda: iter([1, 2]), output_signature=TensorSpec((), "int32"))
        >>> [int(x) for x in dataset]
        [1, 2]

        Args:
            generator: Returns an iterable.
            output_types: A nest of dtypes, if there is no ``output_signature``.
            output_shapes: A nest of shapes for ``output_types``.
            args: Arguments of the generator.
            output_signature: A nest of ``TensorSpec`` that every element must match.
            name: Shown by ``repr``.
        """
        signature = signature_of(output_signature, output_types, output_shapes)
        return cls._from_plan(FromGenerator(generator, signature, tuple(args or ())), name)

    @classmethod
    def list_files(
        cls,
        file_pattern: Any,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns a dataset of the names of files that match a pattern.

        >>> from stratagem.data import Dataset
        >>> Dataset.list_files("/no/such/*.file")
        Traceback (most recent call last):
            ...
        stratagem.errors.NotFoundError: No files match /no/such/*.file.

        Args:
            file_pattern: A glob pattern, or a list of them.
            shuffle: Whether the names are shuffled, as by default; otherwise they are sorted.
            seed: The seed of the shuffle.
            name: Shown by ``repr``.

        Raises:
            NotFoundError: If no file matches.
        """
        names = _matching_files(file_pattern)
        if shuffle is False:
            return cls._from_plan(names, name)
        return cls._from_plan(Shuffle(names, names.cardinality(), seed, True), name)


def _matching_files(patterns: Any) -> TensorSlices:
    """Returns a source of the sorted file names that match any of the patterns.

    Raises:
        NotFoundError: If nothing matches.
    """
    if hasattr(patterns, "tolist"):
        patterns = patterns.tolist()
    listed = patterns if isinstance(patterns, list | tuple) else [patterns]
    texts = [as_path(pattern) for pattern in listed]
    names = sorted({name for text in texts for name in glob.glob(text)})
    if not names:
        raise NotFoundError(f"No files match {', '.join(texts) or 'an empty list of patterns'}.")
    return TensorSlices(names)
