"""``tf.autograph``: functions are traced by JAX, and their source is not rewritten."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.autograph import set_verbosity, trace

if TYPE_CHECKING:
    from stratagem.autograph import experimental

__all__ = ["experimental", "set_verbosity", "trace"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"experimental": ("stratagem.autograph.experimental", None)})
