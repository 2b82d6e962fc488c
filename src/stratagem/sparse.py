"""``tf.sparse``: sparse values of input pipelines, and their conversion to dense arrays."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.tfrecord.parse import SparseValues as SparseTensor
from stratagem._src.tensorflow_api.sparse import to_dense

__all__ = ["SparseTensor", "to_dense"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
