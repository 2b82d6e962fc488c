"""What belongs to TPUs, spelled as ``tf.tpu`` spells it."""

import importlib
from typing import TYPE_CHECKING, Any

from stratagem._src.strategies.xla_options import XLAOptions

if TYPE_CHECKING:
    from stratagem.tpu import experimental

__all__ = ["XLAOptions", "experimental"]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, to keep `import stratagem` quick.
    if name == "experimental":
        return importlib.import_module("stratagem.tpu.experimental")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
