"""``tf.sysconfig``: build and platform information."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.build_info import (
    get_build_info,
)

__all__ = [
    "get_build_info",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
