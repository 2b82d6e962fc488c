"""What belongs to TPUs, spelled as ``tf.tpu`` spells it."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.strategies.xla_options import XLAOptions

if TYPE_CHECKING:
    from stratagem.tpu import experimental

__all__ = ["XLAOptions", "experimental"]

# Loaded when first asked for, to keep `import stratagem` quick.
__getattr__ = lazy_names(__name__, {"experimental": ("stratagem.tpu.experimental", None)})
