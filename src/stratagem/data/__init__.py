"""Datasets: reading, transforming, shuffling and batching the elements to train on."""

from __future__ import annotations

from stratagem.core.errors import (
    CardinalityError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
)
from stratagem.data import experimental
from stratagem.data.auto_shard import (
    num_files,
    seed_shuffles,
    shard_at_hints,
    shard_by_data,
    shard_by_file,
)
from stratagem.data.dataset import Dataset
from stratagem.data.iterator import DatasetIterator
from stratagem.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Options,
)
from stratagem.data.readers import (
    CsvDataset,
    NumpyDataset,
    ParquetDataset,
    TextLineDataset,
    TFRecordDataset,
)
from stratagem.data.tensor_spec import TensorSpec

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "CardinalityError",
    "CsvDataset",
    "DataLossError",
    "Dataset",
    "DatasetIterator",
    "InvalidArgumentError",
    "NotFoundError",
    "NumpyDataset",
    "Options",
    "OutOfRangeError",
    "ParquetDataset",
    "TFRecordDataset",
    "TensorSpec",
    "TextLineDataset",
    "experimental",
    "num_files",
    "seed_shuffles",
    "shard_at_hints",
    "shard_by_data",
    "shard_by_file",
]
