"""``tf.tpu``: TPU options."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.strategies.xla_options import XLAOptions

if TYPE_CHECKING:
    from stratagem.tpu import experimental

__all__ = ["XLAOptions", "experimental"]

# Loaded on first use, to keep `import stratagem` fast.
if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"experimental": ("stratagem.tpu.experimental", None)})
