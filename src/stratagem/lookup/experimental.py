"""``tf.lookup.experimental``: mutable hash tables."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.lookup import MutableHashTable

__all__ = ["MutableHashTable"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
