"""Datasets that read files, one class per format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.data.dataset import Dataset
from stratagem._src.data.plan.node import Node
from stratagem._src.data.sources.csv import CsvFormat
from stratagem._src.data.sources.files import FileNames, ReadFiles, file_names
from stratagem._src.data.sources.numpy_files import NumpyFiles
from stratagem._src.data.sources.parquet import ParquetFormat
from stratagem._src.data.sources.text import TextLineFormat
from stratagem._src.data.sources.tfrecord import TFRecordFormat

__all__ = [
    "CsvDataset",
    "NumpyDataset",
    "ParquetDataset",
    "TFRecordDataset",
    "TextLineDataset",
]


class TFRecordDataset(Dataset):
    """The records of TFRecord files as ``bytes``; verifies every checksum.

    >>> import tempfile
    >>> from stratagem.data import TFRecordDataset
    >>> from stratagem.io import TFRecordWriter
    >>> path = tempfile.mkdtemp() + "/two.tfrecord"
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> list(TFRecordDataset(path))
    [b'one', b'two']

    Args:
        filenames: A file name, a list of them, or a dataset of them.
        compression_type: ``None``, ``"GZIP"`` or ``"ZLIB"``.
        num_parallel_reads: How many files are read in parallel, one record of each in turn; by default
            files are read one after the other.
        name: Shown by ``repr``.

    Raises:
        NotFoundError: When read, if a file does not exist.
        DataLossError: When read, if a record is truncated or corrupt; it names the file and the
            record.
    """

    def __init__(
        self,
        filenames: FileNames,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        reader = TFRecordFormat(compression_type)
        super().__init__(ReadFiles(_names(filenames), reader, num_parallel_reads), name)


class TextLineDataset(Dataset):
    """The lines of text files as ``bytes``, without line endings.

    >>> import pathlib, tempfile
    >>> from stratagem.data import TextLineDataset
    >>> path = pathlib.Path(tempfile.mkdtemp(), "lines.txt")
    >>> _ = path.write_text("one\\ntwo\\n")
    >>> list(TextLineDataset(path))
    [b'one', b'two']

    Args:
        filenames: A file name, a list of them, or a dataset of them.
        compression_type: ``None``, ``"GZIP"`` or ``"ZLIB"``.
        num_parallel_reads: How many files are read in parallel, one line of each in turn; by default
            files are read one after the other.
        name: Shown by ``repr``.
    """

    def __init__(
        self,
        filenames: FileNames,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        reader = TextLineFormat(compression_type)
        super().__init__(ReadFiles(_names(filenames), reader, num_parallel_reads), name)


class ParquetDataset(Dataset):
    """The rows of Parquet files as dicts from column name to value.

    >>> import tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> from stratagem.data import ParquetDataset
    >>> path = tempfile.mkdtemp() + "/table.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}), path)
    >>> [int(row["x"]) for row in ParquetDataset(path)]
    [1, 2]

    Args:
        filenames: A file name, a list of them, or a dataset of them.
        columns: The columns to read; all by default.
        num_parallel_reads: How many files are read in parallel, one row of each in turn; by default
            files are read one after the other.
        name: Shown by ``repr``.
    """

    def __init__(
        self,
        filenames: FileNames,
        columns: Sequence[str] | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            ReadFiles(_names(filenames), ParquetFormat(columns), num_parallel_reads), name
        )


class CsvDataset(Dataset):
    """The rows of CSV files as dicts from column name to value.

    >>> import pathlib, tempfile
    >>> from stratagem.data import CsvDataset
    >>> path = pathlib.Path(tempfile.mkdtemp(), "table.csv")
    >>> _ = path.write_text("x,name\\n1,a\\n2,b\\n")
    >>> [(int(row["x"]), row["name"]) for row in CsvDataset(path)]
    [(1, b'a'), (2, b'b')]

    Args:
        filenames: A file name, a list of them, or a dataset of them.
        columns: The columns to read; all by default.
        column_names: Names of the columns, if the first line does not contain them.
        column_types: Types by column name; the others are inferred from the start of each file.
        delimiter: The character between values.
        num_parallel_reads: How many files are read in parallel, one row of each in turn; by default
            files are read one after the other.
        name: Shown by ``repr``.
    """

    def __init__(
        self,
        filenames: FileNames,
        columns: Sequence[str] | None = None,
        column_names: Sequence[str] | None = None,
        column_types: dict[str, Any] | None = None,
        delimiter: str = ",",
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        reader = CsvFormat(columns, column_names, column_types, delimiter)
        super().__init__(ReadFiles(_names(filenames), reader, num_parallel_reads), name)


class NumpyDataset(Dataset):
    """The rows of ``.npy`` files, or of the arrays in ``.npz`` files as dicts from name to row.

    The files form one table with random access: shuffling and batching is index arithmetic, and
    ``.npy`` files are memory-mapped, so only the rows that are used are read.

    >>> import tempfile
    >>> import numpy as np
    >>> from stratagem.data import NumpyDataset
    >>> path = tempfile.mkdtemp() + "/array.npy"
    >>> np.save(path, np.arange(6).reshape(3, 2))
    >>> [row.tolist() for row in NumpyDataset(path)]
    [[0, 1], [2, 3], [4, 5]]

    Args:
        filenames: A file name, a list of them, or a dataset of them.
        name: Shown by ``repr``.
    """

    def __init__(self, filenames: FileNames, name: str | None = None) -> None:
        super().__init__(NumpyFiles(_names(filenames)), name)


def _names(filenames: FileNames) -> Node:
    return file_names(filenames.plan if isinstance(filenames, Dataset) else filenames)
