"""``tf.sparse``: converts the values of a ``VarLenFeature`` to dense arrays."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.sparse import to_dense

__all__ = ["to_dense"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
