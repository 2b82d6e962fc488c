"""``.npy`` and ``.npz`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem._src.core.types import PyTree
from stratagem._src.data.compressed_files import as_path
from stratagem._src.data.conversion import to_array
from stratagem._src.data.plan.node import Node
from stratagem._src.data.plan.random_access import ArrayAccess, ConcatAccess, RandomAccess
from stratagem._src.data.plan.rows import num_rows
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.sources.blocks import BlockStream
from stratagem._src.data.sources.files import FileFormat, ReadFiles
from stratagem._src.data.structure import map_structure
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["NumpyFiles"]


class NumpyFiles(ReadFiles):
    """The rows of the arrays in files; an ``.npz`` file yields dicts from array name to row.

    ``.npy`` files are memory-mapped, so only the rows that are used are read.
    """

    derived_attributes = ("_table",)

    def __init__(self, names: Node) -> None:
        super().__init__(names, _NumpyFormat(), num_parallel_reads=None)
        self._table: RandomAccess | None = None

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns the rows of other files."""
        node = self.with_inputs(inputs)
        if node is not self:
            node._table = None
        return node

    def cardinality(self) -> int:
        """Returns the number of rows."""
        access = self.random_access()
        return super().cardinality() if access is None else len(access)

    def random_access(self) -> RandomAccess | None:
        """Returns the files as one table, if the file names have random access."""
        if self._table is None:
            self._table = self._load_all()
        return self._table

    def _load_all(self) -> RandomAccess | None:
        names = self.inputs[0].random_access()
        if names is None:
            return None
        paths = [as_path(names.element(index)) for index in range(len(names))]
        loaded = [(path, _load(path)) for path in paths]
        _check_alike(loaded)
        tables: list[RandomAccess] = [ArrayAccess(rows, num_rows(rows)) for _, rows in loaded]
        return tables[0] if len(tables) == 1 else ConcatAccess(tables)


class _NumpyFormat(FileFormat):
    def element_spec(self, path: str) -> Any:
        return _specs(_load(path))

    def open(self, path: str) -> Stream:
        def blocks(start: int) -> Iterator[Any]:
            yield map_structure(lambda array: array[start:], _load(path))

        return BlockStream(blocks)


def _specs(rows: PyTree) -> Any:
    return map_structure(lambda array: TensorSpec(array.shape[1:], array.dtype), rows)


def _check_alike(loaded: list[tuple[str, Any]]) -> None:
    (first_path, first), *others = loaded
    for path, rows in others:
        if _specs(rows) != _specs(first):
            raise InvalidArgumentError(
                f"All files must have the same row spec, got {_specs(first)} in {first_path} and "
                f"{_specs(rows)} in {path}."
            )


def _load(path: str) -> Any:
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            rows: Any = loaded.view(np.ndarray)
        else:
            with loaded:
                rows = {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.") from None
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise DataLossError(f"{path}: not a complete .npy or .npz file: {error}") from error
    try:
        num_rows(rows)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None
    return map_structure(to_array, rows)
