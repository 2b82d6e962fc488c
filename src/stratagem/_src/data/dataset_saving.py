"""The methods of ``Dataset`` that save elements to files and load them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ElementSpec
from stratagem._src.data.dataset_base import DatasetBase, plan_of
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.iterator import check_no_shard_hints
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.fingerprint import fingerprint
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.saved.directory import SavedDataset, check_free, read_saved
from stratagem._src.data.saved.reader import check_spec, saved_plan, shard_plan
from stratagem._src.data.saved.shard_function import ShardFunction
from stratagem._src.data.saved.writer import DatasetWriter, check_compression, rows_in_block
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.transforms.snapshot import Snapshot

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetSaving"]


class DatasetSaving(DatasetBase):
    """Saves datasets, loads them, and takes snapshots during iteration."""

    def save(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: None = None,
    ) -> None:
        """Writes all elements to files that ``Dataset.load`` reads.

        The files contain arrays and JSON with checksums; loading executes no code from them. A dataset
        saved at ``path`` before is replaced atomically when this one is complete; if saving fails, the
        earlier one stays.

        >>> import tempfile
        >>> from stratagem.data import Dataset
        >>> path = tempfile.mkdtemp() + "/numbers"
        >>> Dataset.range(3).save(path)
        >>> [int(x) for x in Dataset.load(path)]
        [0, 1, 2]

        Args:
            path: The directory, which contains nothing else.
            compression: ``None`` or ``"GZIP"``.
            shard_func: Returns the shard index of an element; by default there is one shard, a file.
                Workers shard by file under ``AutoShardPolicy.FILE``.
            checkpoint_args: Not supported; an interrupted save starts over.

        Raises:
            InvalidArgumentError: If ``path`` contains something else, or the elements cannot be written to
                files, or the dataset is infinite.
        """
        if checkpoint_args is not None:
            raise InvalidArgumentError(
                "save() has no checkpoints, so checkpoint_args must be None."
            )
        directory = Path(path)
        shard_of, compressing = ShardFunction(shard_func), check_compression(compression)
        if self.plan.cardinality() == INFINITE_CARDINALITY:
            raise InvalidArgumentError(
                "An infinite dataset cannot be saved. Use take(count) first."
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
        element_spec: ElementSpec = None,
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
            element_spec: The expected spec; by default that of the saved dataset.
            compression: The expected compression; by default that of the saved files.
            reader_func: Takes a dataset with one dataset per file and returns the dataset to read. By
                default up to 64 files are interleaved, one element of each in turn.
            wait: Not supported: a dataset is complete once ``save`` has returned.

        Raises:
            NotFoundError: If there is no saved dataset.
            DataLossError: If it is incomplete or corrupt.
            InvalidArgumentError: If it does not match ``element_spec`` or ``compression``.
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
        return cls._from_plan(_plan(cls, saved, spec, reader_func), None)

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
        """Returns the same elements; the first complete pass writes them to files that later passes read.

        A snapshot is identified by the ``fingerprint`` of the transformations before it: if a function, an
        argument or an array of theirs changes, a new snapshot is written. The contents of input files are
        not part of it; pass another ``key``, or remove the snapshot, when these have changed.

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
            shard_func: As for ``save``. With several files the snapshot is read in another order.
            name: Shown by ``repr``.
            key: Identifies the snapshot instead of the fingerprint, for functions that have no
                fingerprint, and to mark that input files have changed.

        Raises:
            InvalidArgumentError: If the dataset is infinite.
        """

        def read_plan(saved: SavedDataset) -> Node:
            return _plan(type(self), saved, saved.element_spec, reader_func)

        plan = Snapshot(
            self.plan, os.fspath(path), key, check_compression(compression), shard_func, read_plan
        )
        return self._from_plan(plan, name)

    def fingerprint(self) -> np.uint64:
        """Returns a hash that is equal for datasets built in the same way, even in different programs.

        Files are identified by name, functions by their code and the objects that they use. All shuffles
        without a seed are equal.

        >>> from stratagem.data import Dataset
        >>> Dataset.range(3).batch(2).fingerprint() == Dataset.range(3).batch(2).fingerprint()
        np.True_
        >>> Dataset.range(3).batch(2).fingerprint() == Dataset.range(3).batch(1).fingerprint()
        np.False_

        Raises:
            InvalidArgumentError: If a function uses an object that cannot be inspected.
        """
        return np.uint64(fingerprint(self.plan))


def _write_all(plan: Node, writer: DatasetWriter, shard_of: ShardFunction) -> None:
    check_no_shard_hints(plan)
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
    cls: type[DatasetSaving],
    saved: SavedDataset,
    spec: ElementSpec,
    reader_func: Callable[..., Any] | None,
) -> Node:
    if reader_func is None:
        return saved_plan(saved, spec)
    shards = [cls._from_plan(shard_plan(saved, spec, shard), None) for shard in saved.shards]
    datasets = cls._from_plan(Elements(shards, lambda: DatasetSpec(spec)), None)
    return plan_of(reader_func(datasets), "reader_func")
