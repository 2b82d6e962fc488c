"""``tf.compat``: text and bytes, and names for compatibility with TensorFlow 1."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.compat import as_bytes, as_str, as_str_any, as_text, path_to_str

if TYPE_CHECKING:
    from stratagem.compat import v1

__all__ = ["as_bytes", "as_str", "as_str_any", "as_text", "path_to_str", "v1"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__, {"v1": ("stratagem.compat.v1", None), "v2": ("stratagem", None)}
    )
