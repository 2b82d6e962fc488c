"""``tf.config.optimizer``: the compiler is always XLA."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.mesh.compiler_settings import (
    get_experimental_options,
    get_jit,
    set_experimental_options,
    set_jit,
)

__all__ = ["get_experimental_options", "get_jit", "set_experimental_options", "set_jit"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
