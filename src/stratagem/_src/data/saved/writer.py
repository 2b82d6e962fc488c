"""Writes the elements of a dataset to the files of its shards."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element, ElementSpec, PyTree
from stratagem._src.data.dataset_spec import spec_of
from stratagem._src.data.element_format import encode_leaves
from stratagem._src.data.plan.rows import num_rows, stack_elements
from stratagem._src.data.saved.directory import SavedDataset, SavedShard, commit, new_run
from stratagem._src.data.saved.spec_json import spec_to_json
from stratagem._src.data.structure import flatten
from stratagem._src.data.tfrecord.record_format import encode_record

__all__ = ["DatasetWriter", "check_compression", "rows_in_block"]

_MAX_BLOCK_ROWS = 1024
_TARGET_BLOCK_BYTES = 1 << 20


def check_compression(compression: str | None) -> str:
    """Returns the compression of a name: ``""`` or ``"GZIP"``.

    ``"AUTO"`` means none: snapshots are for fast reading, and decompression is slow.

    Raises:
        InvalidArgumentError: If the name is unknown.
    """
    if compression in (None, "", "NONE", "AUTO"):
        return ""
    if compression != "GZIP":
        raise InvalidArgumentError(
            f"compression must be None, 'NONE', 'AUTO' or 'GZIP', got {compression!r}."
        )
    return "GZIP"


def rows_in_block(element_spec: ElementSpec) -> int:
    """Returns how many elements of a known size are written per block."""
    sizes = [int(np.prod(list(spec.shape))) * spec.dtype.itemsize for spec in flatten(element_spec)]
    return max(1, min(_MAX_BLOCK_ROWS, _TARGET_BLOCK_BYTES // max(1, sum(sizes))))


class DatasetWriter:
    """Writes the files of one save, which becomes visible when ``finish`` returns.

    Args:
        path: The directory of the dataset.
        element_spec: The nest of specs of its elements.
        compression: ``""`` or ``"GZIP"``.
    """

    def __init__(self, path: Path, element_spec: ElementSpec, compression: str) -> None:
        spec_to_json(element_spec)
        self._element_spec = element_spec
        self._compression = compression
        self._run = new_run(path)
        self._shards: dict[int, _ShardWriter] = {}

    def add(self, element: Element, shard: int = 0) -> None:
        """Writes one element to a shard."""
        self._shard(shard).add(element)

    def add_rows(self, rows: PyTree, shard: int = 0) -> None:
        """Writes several elements, given as rows, to a shard."""
        self._shard(shard).write(rows)

    def _shard(self, number: int) -> _ShardWriter:
        if number not in self._shards:
            self._shards[number] = _ShardWriter(self._compression)
            self._shards[number].path = self._run / f"{len(self._shards) - 1:05d}.records"
        return self._shards[number]

    def finish(self, *, replace: bool = True) -> None:
        """Completes the files and commits them as the saved dataset."""
        shards = tuple(self._shards[number].finish() for number in sorted(self._shards))
        saved = SavedDataset(self._run, self._element_spec, self._compression, shards)
        commit(saved, replace=replace)

    def abandon(self) -> None:
        """Removes the files."""
        shutil.rmtree(self._run, ignore_errors=True)


class _ShardWriter:
    """Writes consecutive elements of equal shapes and dtypes as one block of rows.

    The file is opened for each block, so that there may be more shards than the limit of open files.
    """

    path: Path

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self._elements: list[Any] = []
        self._specs: list[Any] = []
        self._num_waiting_bytes = 0
        self._num_elements = 0
        self._num_bytes = 0

    def add(self, element: Element) -> None:
        leaves = flatten(element)
        specs = [spec_of(leaf) for leaf in leaves]
        if self._elements and specs != self._specs:
            self._flush()
        self._elements.append(element)
        self._specs = specs
        self._num_waiting_bytes += sum(getattr(leaf, "nbytes", 0) or len(leaf) for leaf in leaves)
        if len(self._elements) == _MAX_BLOCK_ROWS or self._num_waiting_bytes >= _TARGET_BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._elements:
            rows = stack_elements(self._elements)
            self._elements, self._num_waiting_bytes = [], 0
            self.write(rows)

    def write(self, rows: PyTree) -> None:
        payload = encode_leaves(flatten(rows))
        record = encode_record(zlib.compress(payload) if self._compression else payload)
        with self.path.open("ab") as file:
            file.write(record)
        self._num_elements += num_rows(rows)
        self._num_bytes += len(record)

    def finish(self) -> SavedShard:
        self._flush()
        with self.path.open("ab") as file:
            os.fsync(file.fileno())
        return SavedShard(self.path.name, self._num_elements, self._num_bytes)
