"""``tf.version``: the TensorFlow version that this API follows."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.build_info import (
    COMPILER_VERSION,
    GIT_VERSION,
    VERSION,
)

__all__ = [
    "COMPILER_VERSION",
    "GIT_VERSION",
    "VERSION",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
