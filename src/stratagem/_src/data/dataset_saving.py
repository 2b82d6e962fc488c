"""The methods of ``Dataset`` that keep elements in files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.iterator import refuse_hints
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.fingerprint import fingerprint
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.planned_elements import PlannedElements, plan_of
from stratagem._src.data.saved.directory import SavedDataset, check_free, read_saved
from stratagem._src.data.saved.reader import check_spec, saved_plan, shard_plan
from stratagem._src.data.saved.shard_function import ShardFunction
from stratagem._src.data.saved.writer import DatasetWriter, check_compression, rows_in_block
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.transforms.snapshot import Snapshot

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetSaving"]


class DatasetSaving(PlannedElements):
    """Elements in files: saved at once, loaded, or kept by the way."""

    def save(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: None = None,
    ) -> None:
        """Writes all elements into files, from which ``Dataset.load`` reads them.

        The files hold arrays and JSON, with checksums, and nothing that is run when they are read. A
        dataset that was saved at ``path`` before is replaced at once when this one is complete; if it
        fails, the earlier one stays.

        >>> import tempfile
        >>> from stratagem.data import Dataset
        >>> path = tempfile.mkdtemp() + "/numbers"
        >>> Dataset.range(3).save(path)
        >>> [int(x) for x in Dataset.load(path)]
        [0, 1, 2]

        Args:
            path: The directory, which holds nothing else.
            compression: ``None`` or ``"GZIP"``.
            shard_func: Returns the number of the file for an element; all go into one by default.
                Workers divide the files between them under ``AutoShardPolicy.FILE``.
            checkpoint_args: Not supported; a save that did not end is done again.

        Raises:
            InvalidArgumentError: If ``path`` holds something else, or the elements cannot be kept in
                files, or are infinitely many.
        """
        if checkpoint_args is not None:
            raise InvalidArgumentError(
                "save() has no checkpoints, so checkpoint_args must be None."
            )
        directory = Path(path)
        shard_of, compressing = ShardFunction(shard_func), check_compression(compression)
        if self.plan.cardinality() == INFINITE_CARDINALITY:
            raise InvalidArgumentError(
                "Infinitely many elements cannot be saved. Use take(count) first."
            )
        check_free(directory)
        writer = DatasetWriter(directory, self.plan.element_spec, compressing)
        try:
            _write_all(self.plan, writer, shard_of)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        element_spec: Any = None,
        compression: str | None = None,
        reader_func: Callable[[Dataset], Dataset] | None = None,
        wait: bool = False,
    ) -> Dataset:
        """Returns the dataset that ``save`` wrote.

        >>> import tempfile
        >>> from stratagem.data import Dataset
        >>> path = tempfile.mkdtemp() + "/numbers"
        >>> Dataset.range(4).save(path, shard_func=lambda x: x // 2)
        >>> [int(x) for x in Dataset.load(path)]
        [0, 2, 1, 3]
        >>> one_by_one = lambda shards: shards.flat_map(lambda shard: shard)
        >>> [int(x) for x in Dataset.load(path, reader_func=one_by_one)]
        [0, 1, 2, 3]

        Args:
            path: The directory.
            element_spec: What the elements must be; by default what they were.
            compression: What the files must be compressed by; by default what they are.
            reader_func: Makes the dataset from one of datasets, one for each file. By default the files
                give one element each in turn, up to 64 files at a time.
            wait: Not supported, as a dataset is there once ``save`` has returned.

        Raises:
            NotFoundError: If there is no saved dataset.
            DataLossError: If it is not whole.
            InvalidArgumentError: If it is another one than was asked for.
        """
        if wait:
            raise InvalidArgumentError(
                "load() does not wait for another program, so wait must be False. Load the dataset "
                "when save() has returned."
            )
        saved = read_saved(Path(path))
        spec = check_spec(saved, element_spec)
        if compression is not None and check_compression(compression) != saved.compression:
            raise InvalidArgumentError(
                f"compression must be that of the files in {path}, {saved.compression or None!r}, got "
                f"{compression!r}. Leave it out."
            )
        return cls._of(_plan(cls, saved, spec, reader_func), None)

    def snapshot(
        self,
        path: str | os.PathLike[str],
        compression: str | None = "AUTO",
        reader_func: Callable[[Dataset], Dataset] | None = None,
        shard_func: Callable[..., Any] | None = None,
        name: str | None = None,
        *,
        key: str | None = None,
    ) -> Dataset:
        """Returns the same elements, kept in files by the first complete pass and read from there later.

        A snapshot belongs to the steps before it, as ``fingerprint`` tells them apart: when a function,
        an argument or an array of them changes, another one is made. What is in files is not looked at;
        give another ``key``, or remove the snapshot, when that has changed.

        >>> import tempfile
        >>> from stratagem.data import Dataset
        >>> path = tempfile.mkdtemp()
        >>> slow = Dataset.range(3).map(lambda x: x * x)
        >>> [int(x) for x in slow.snapshot(path)], [int(x) for x in slow.snapshot(path)]
        ([0, 1, 4], [0, 1, 4])

        Args:
            path: The directory for this and other snapshots.
            compression: ``"AUTO"`` and ``None`` for none, or ``"GZIP"``.
            reader_func: As for ``load``, when the snapshot is read.
            shard_func: As for ``save``. If there are several files, the order is another one when they
                are read.
            name: Shown by ``repr``.
            key: Stands for the steps before it in place of their fingerprint, for functions that cannot
                be told apart, and to say that files have changed.

        Raises:
            InvalidArgumentError: If there are infinitely many elements.
        """

        def read_plan(saved: SavedDataset) -> Node:
            return _plan(type(self), saved, saved.element_spec, reader_func)

        plan = Snapshot(
            self.plan, os.fspath(path), key, check_compression(compression), shard_func, read_plan
        )
        return self._of(plan, name)

    def fingerprint(self) -> np.uint64:
        """Returns a number that is the same for datasets made in the same way, also in two programs.

        Files count by their names, a ``shuffle`` without a seed whatever its order, functions by their
        code and what they use.

        >>> from stratagem.data import Dataset
        >>> Dataset.range(3).batch(2).fingerprint() == Dataset.range(3).batch(2).fingerprint()
        np.True_
        >>> Dataset.range(3).batch(2).fingerprint() == Dataset.range(3).batch(1).fingerprint()
        np.False_

        Raises:
            InvalidArgumentError: If a function uses an object that cannot be looked into.
        """
        return np.uint64(fingerprint(self.plan))


def _write_all(plan: Node, writer: DatasetWriter, shard_of: ShardFunction) -> None:
    refuse_hints(plan)
    stream = lower(plan).open(Run(plan), ())
    try:
        if shard_of.is_constant and stream.uniform:
            count = rows_in_block(plan.element_spec)
            while (rows := stream.next_rows(count)) is not None:
                writer.add_rows(rows)
            return
        for element in stream:
            writer.add(element, shard_of(element))
    finally:
        stream.close()


def _plan(
    cls: type[DatasetSaving], saved: SavedDataset, spec: Any, reader_func: Callable[..., Any] | None
) -> Node:
    if reader_func is None:
        return saved_plan(saved, spec)
    shards = [cls._of(shard_plan(saved, spec, shard), None) for shard in saved.shards]
    datasets = cls._of(Elements(shards, lambda: DatasetSpec(spec)), None)
    return plan_of(reader_func(datasets), "reader_func")
