"""``tf.lookup``: hash tables, on the host."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.lookup import (
    KeyValueTensorInitializer,
    StaticHashTable,
    StaticVocabularyTable,
    TextFileIndex,
    TextFileInitializer,
)

if TYPE_CHECKING:
    from stratagem.lookup import experimental

__all__ = [
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
    "experimental",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"experimental": ("stratagem.lookup.experimental", None)})
