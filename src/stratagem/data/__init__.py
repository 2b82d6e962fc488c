"""``tf.data``: datasets that read, transform, shuffle and batch training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._src.core.errors import (
    CardinalityError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
)
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.auto_shard import (
    num_files,
    seed_shuffles,
    shard_at_hints,
    shard_by_data,
    shard_by_file,
)
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Options,
)
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.data.readers import (
    CsvDataset,
    NumpyDataset,
    ParquetDataset,
    TextLineDataset,
    TFRecordDataset,
)
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem.data import experimental

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "CardinalityError",
    "CsvDataset",
    "DataLossError",
    "Dataset",
    "DatasetIterator",
    "DatasetSpec",
    "InvalidArgumentError",
    "NotFoundError",
    "NumpyDataset",
    "Options",
    "OutOfRangeError",
    "ParquetDataset",
    "RaggedTensor",
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

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
