"""``ReadFiles``: a source that reads files, from a plan of file names and a file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.compressed_files import as_path
from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.sources.tensors import TensorSlices
from stratagem._src.data.structure import flatten
from stratagem._src.data.tensor_spec import STRING
from stratagem._src.data.transforms.interleave import Interleave

__all__ = ["FileFormat", "FileNames", "ReadFiles", "file_names"]

FileNames: TypeAlias = Any
"""A file name, a list of them, or a dataset or plan that yields them."""


class FileFormat(ABC):
    """Reads the elements of one file."""

    @abstractmethod
    def open(self, path: str) -> Stream:
        """Starts a pass over the elements of a file."""

    @abstractmethod
    def element_spec(self, path: str) -> Any:
        """Returns the nest of specs of the elements of a file."""


def file_names(filenames: FileNames) -> Node:
    """Returns the plan for one file name, a list of them, or a plan that yields them.

    Raises:
        InvalidArgumentError: If it is none of these.
    """
    if isinstance(filenames, Node):
        specs = flatten(filenames.element_spec)
        if len(specs) != 1 or specs[0].dtype != STRING:
            raise InvalidArgumentError(
                f"A dataset of file names must have one string per element, got {specs}."
            )
        return filenames
    if hasattr(filenames, "tolist"):
        filenames = filenames.tolist()
    if isinstance(filenames, list | tuple):
        paths = [as_path(name) for name in filenames]
    else:
        paths = [as_path(filenames)]
    if not paths:
        raise InvalidArgumentError("filenames must name at least one file, got none.")
    return TensorSlices(paths)


class ReadFiles(Interleave):
    """The elements of files, one file after the other or several interleaved.

    Args:
        names: The plan of the file names.
        file_format: Reads one file.
        num_parallel_reads: How many files are read in parallel, each in its own thread; ``None`` for no
            threads.
        cycle_length: How many files are interleaved without threads.
    """

    def __init__(
        self,
        names: Node,
        file_format: FileFormat,
        num_parallel_reads: int | None,
        cycle_length: int = 1,
    ) -> None:
        self._format = file_format
        super().__init__(
            names,
            lambda name: _OneFile(as_path(name), file_format),
            cycle_length=cycle_length if num_parallel_reads is None else num_parallel_reads,
            num_parallel_calls=num_parallel_reads,
        )

    def _compute_spec(self) -> Any:
        name = as_path(first_element(self.inputs[0], "a reader of files"))
        return self._format.element_spec(name)


class _OneFile(Node):
    def __init__(self, path: str, file_format: FileFormat) -> None:
        self._path = path
        self._format = file_format

    def _compute_spec(self) -> Any:
        return self._format.element_spec(self._path)

    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        return self._format.open(self._path)
